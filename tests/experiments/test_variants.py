"""Plans become texts of params.yaml: only the lines they are about change, and what is wrong is
refused before anything runs."""

import difflib

import pytest
import yaml
from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update

from posttrain.experiments.plan import Variant, read_plan, variants, with_knobs
from posttrain.runtime.exits import ConfigurationError


@pytest.fixture
def params(repository):
    return (repository / "params.yaml").read_text(encoding="utf-8")


def changed_lines(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def chosen(params, overrides, seeds=()):
    return variants(read_plan(None, overrides, seeds), params)


def test_every_override_runs_with_every_seed(params):
    found = chosen(params, [{"name": "base"}, {"name": "fast", "set": {"train_policy.lr": 0.004}}], [1, 2])
    assert [variant.branch for variant in found] == [
        "exp/base-seed1",
        "exp/fast-seed1",
        "exp/base-seed2",
        "exp/fast-seed2",
    ]
    assert found[3].knobs == {"train_policy.lr": 0.004, "seed": 2}
    assert found[3].sentence() == "train_policy.lr = 0.004, seed = 2"
    assert [variant.name for variant in chosen(params, [{"name": "base"}])] == ["base-seed1"]  # the file's own seed


def test_a_plan_may_be_a_file_and_the_command_lines_seeds_go_before_its_own(params, tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("overrides: [{name: base}]\nseeds: [1, 2]\n")
    assert [one.name for one in variants(read_plan(file, (), ()), params)] == ["base-seed1", "base-seed2"]
    assert [one.name for one in variants(read_plan(file, (), (7,)), params)] == ["base-seed7"]


def test_a_number_in_a_plan_is_what_it_looks_like(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("overrides: [{name: base}]\nseeds: [1, 010]\n")
    with pytest.raises(ConfigurationError, match=r"line 2: 010 is no decimal number"):
        read_plan(file, (), ())


def test_only_the_lines_of_the_knobs_change_and_comments_stay(params):
    assert with_knobs(params, Variant("base-seed1", {"seed": 1})) == params
    before, after = changed_lines(params, with_knobs(params, Variant("x", {"train_policy.lr": 0.00004})))
    assert before == "-  lr: 2.0e-3                      # on dev: 1.0e-3 is too slow, 8.0e-3 collapses"
    assert after == "+  lr: 4.0e-05                     # on dev: 1.0e-3 is too slow, 8.0e-3 collapses"


def as_dvc_writes_it(text: str) -> str:
    """`dvc exp run -S` and `dvc exp apply` write `params.yaml` anew in a style of their own."""
    return dumps_yaml(parse_yaml_for_update(text, "params.yaml"))


@pytest.mark.parametrize(
    ("knobs", "lines"),
    [
        ({"train_policy.lr": 0.004, "seed": 7}, ["seed: 7", "  lr: 0.004"]),
        ({"model.rows_at_once": 4, "train_policy.alarms.kl": None}, ["  rows_at_once: 4", "    kl: null"]),
        ({"train_policy.algorithm.dev.keep": "best"}, ["    dev: {every_steps: 16, num_tasks: 128, keep: best}"]),
        ({"model.adapter": {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj"],
                            "quantization": "none"}}, ["  adapter: {type: lora, r: 4,"]),
        ({"evaluate.by": ["kind"]}, ["  by: [kind]"]),
        ({"train_sft.label_weights": {}}, ["  label_weights: {}"]),
    ],
)  # fmt: skip
def test_an_experiment_changes_its_own_lines_and_reads_the_same_in_dvcs_style(params, knobs, lines):
    edited = with_knobs(params, Variant("x", knobs))
    added = [line[1:] for line in changed_lines(params, edited) if line.startswith("+")]
    assert [line.startswith(wanted) for line, wanted in zip(added, lines, strict=True)] == [True] * len(lines)
    assert edited.count("#") >= params.count("#") - 5
    assert with_knobs(edited, Variant("x", knobs)) == edited
    assert yaml.safe_load(with_knobs(as_dvc_writes_it(params), Variant("x", knobs))) == yaml.safe_load(edited)


def test_a_key_that_was_not_there_gets_its_place_at_the_end_of_its_section(params):
    lacking = params.replace('    market_flip: 0.1              # reasons "HK", calls A\n', "")
    lora = {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj"], "quantization": "none"}
    knobs = {"world.flaw_rates.market_flip": 0.2} | {f"model.adapter.{key}": value for key, value in lora.items()}
    added = [line for line in changed_lines(lacking, with_knobs(lacking, Variant("x", knobs))) if line[0] == "+"]
    assert added[0] == "+    market_flip: 0.2"
    assert added[1].startswith("+  adapter: {type: lora, r: 4, alpha: 8, dropout: 0.0, target_modules: [q_proj], quant")
    assert len(added) == 2


def test_a_knob_that_is_turned_off_is_written_as_null(params):
    before, after = changed_lines(params, with_knobs(params, Variant("x", {"train_policy.alarms.kl": None})))
    assert before.startswith("-    kl: 0.5 ")
    assert after.startswith("+    kl: null ")


def test_a_whole_section_may_be_another_choice(params):
    dpo = {"type": "dpo", "max_steps": 80, "batch_size": 32, "beta": 0.5, "loss": "sigmoid"}
    content = yaml.safe_load(with_knobs(params, Variant("dpo", {"train_policy.algorithm": dpo})))
    assert content["train_policy"]["algorithm"] == dpo


@pytest.mark.parametrize(
    "text",
    ["on", "1e-5", "", "a: b", "$(touch pwned); `x` \"q\" 'p' # no comment", "line\nline", "{a: 1}", "harbour:Harbour"],
)
def test_a_string_is_read_as_it_was_given(params, text):
    source = {"type": "openai", "model": text, "temperature": 0.00001, "max_new_tokens": 8}
    written = with_knobs(params, Variant("x", {"generate_data.source": source}))
    assert yaml.safe_load(written)["generate_data"]["source"] == source


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"train_policy.rate": 0.1}, "train_policy.rate: unknown key"),
        ({"train_policy.type": "dpo"}, "train_policy.type: unknown key"),
        ({"sampling.lr": 0.1}, "no section 'sampling'"),
        ({"seed.of": 1}, "no section 'seed'"),
        ({"train_policy.lr": "1e-5"}, "a string, not a number"),
        ({"a b; $(touch pwned)": 1}, "unknown key"),
        ({"": 1}, "unknown key"),
        ({"train_policy.algorithm.type": "dpo"}, "beta"),
        ({"reward.extra": [{"name": "brevitty", "weight": 0.1}]}, "could earn more than"),
    ],
)
def test_wrong_knobs_are_refused(params, knobs, why):
    with pytest.raises(ConfigurationError, match=why):
        chosen(params, [{"name": "fine"}, {"name": "wrong", "set": knobs}])


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "a;b",
        "$(touch pwned)",
        "`x`",
        "a'b",
        'a"b',
        "../up",
        "a/b",
        "-rf",
        "a..b",
        "a.lock",
        "A",
        "ä",
        "a\n",
        "x" * 51,
        "@{1}",
    ],
)
def test_a_name_that_would_be_more_than_a_name_is_refused(params, name):
    with pytest.raises(ConfigurationError, match="cannot be named"):
        chosen(params, [{"name": name}])


@pytest.mark.parametrize(
    ("overrides", "seeds", "why"),
    [
        ([], [], "name a file with overrides"),
        ([{"name": "a"}, {"name": "a"}], [], "a-seed1 stands twice"),
        ([{"name": "a"}], [1, 1], "a-seed1 stands twice"),
        ([{"name": "a"}], [-1], "negative"),
        ([{"name": "a"}], [2**32], "less than or equal to 4294967295"),
        ([{"name": "a"}], [True], "seeds"),
        ([{"name": "a", "sets": {}}], [], "sets"),
        ([{"set": {}}], [], "name"),
    ],
)
def test_a_plan_that_says_nothing_or_too_much_is_refused(params, overrides, seeds, why):
    with pytest.raises(ConfigurationError, match=why):
        chosen(params, overrides, seeds)
