"""Each rule of the contract finds the one defect of a world that breaks it, and no world that keeps
it is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from posttrain.config.named_world import DEFAULT_REWARD
from posttrain.rewards.params import RewardParams
from posttrain.rewards.total import load_reward
from posttrain.types import SPLITS
from posttrain.world_check.check import check_world
from posttrain.world_check.tasks import counts_of
from posttrain.worlds.choices import example_params
from posttrain.worlds.domains import score_names
from tests.console import posttrain
from tests.world_check.planted import PLANTED, Boxes, end_what_was_left
from tests.worlds.loopback import serving
from tests.worlds.test_http_env import Guessing, params_of

NUM_TASKS = 6
IN_ANOTHER_PROCESS = "tasks: the same in another process"


def checked(domain, *, in_child=False):
    section = example_params(f"tests.world_check.planted:{domain.__name__}")
    rule = load_reward(RewardParams.model_validate(DEFAULT_REWARD), score_names(domain(section)))
    counts = counts_of(section, NUM_TASKS)
    return check_world(lambda: domain(section), counts, rule, section=section if in_child else None)


@pytest.fixture(autouse=True, scope="module")
def nothing_left():
    yield
    end_what_was_left()


def states(found):
    return {finding.rule: finding.state for finding in found.findings}


@pytest.fixture(scope="module")
def kept():
    return checked(Boxes, in_child=True)


def test_a_world_that_keeps_the_contract_and_has_every_part_is_tried_by_every_rule(kept):
    assert set(states(kept).values()) == {"ok"}, kept.findings
    assert kept.is_kept
    assert all(kept.has.values())
    assert kept.num_tasks == dict.fromkeys(SPLITS, NUM_TASKS)
    assert kept.facts["max_gold_messages"] == 4  # a question, two calls, an answer
    assert kept.facts["num_episodes"] == 5 * NUM_TASKS * (1 + 1 + 1 + 5)  # gold, silent, flawed, five adversaries


def test_every_rule_finds_some_planted_defect(kept):
    assert set().union(*(rules for _, rules in PLANTED.values())) == set(states(kept))


@pytest.mark.parametrize("name", PLANTED)
def test_the_rule_finds_its_planted_defect_and_no_other_rule_does(name):
    domain, rules = PLANTED[name]
    found = checked(domain, in_child=IN_ANOTHER_PROCESS in rules)
    failed = {finding.rule: finding.why for finding in found.findings if finding.state == "FAILED"}
    if name.startswith(("OffersAKey", "CannotBeOpened")):  # such a task cannot be played by gold, either
        failed.pop("gold: a flawless play is a strict success", None)
    assert set(failed) == rules, failed
    assert not found.is_kept
    assert all(len(why) > 40 for why in failed.values()), failed  # a sentence, not a word


# The command


@pytest.mark.parametrize("name", ["toy", "stocks"])
def test_the_librarys_own_worlds_keep_it_by_the_reward_of_params_yaml(repository, monkeypatch, name):
    monkeypatch.chdir(repository)
    ended = posttrain("check-world", name, "--num-tasks", 8)
    assert ended.exit_code == 0, ended.stdout + ended.stderr
    assert "; the reward of params.yaml" in ended.stdout
    assert "30 rules hold, 0 broken, 1 not tried" in ended.stdout
    assert "not tried  close: ends quietly, also where nothing was begun (the world has no close)" in ended.stdout


@pytest.fixture
def ours(repository, tmp_path, monkeypatch):
    """A folder without params.yaml, with the recipe's world of dice."""
    text = (repository / "docs/your-world-and-agent.md").read_text(encoding="utf-8")
    source = re.search(r"```python\n# ours/dice.py\n(.*?)```", text, flags=re.DOTALL)
    assert source
    (tmp_path / "recipe_of_dice.py").write_text(source[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_recipes_world_keeps_it_without_a_params_yaml(ours):
    ended = posttrain("check-world", "recipe_of_dice:Dice", "--num-tasks", 12)
    assert ended.exit_code == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("dice: 12 sft, 12 rl, 12 dev, 12 test, 12 test_paraphrase; the default reward\n")
    assert "has expert, realise_anew; without wanted, scores, opening, is_over, close" in ended.stdout
    assert re.search(r"open \S+ ms · call \S+ ms · grade \S+ ms \(medians\) · \d+ episodes/s", ended.stdout)


def test_a_server_of_environments_keeps_it(repository, ours):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    content["sample_preferences"]["num_tasks"] = content["train_policy"]["algorithm"]["tasks_per_step"] = 3
    with serving(Guessing().application) as url:
        content["world"] = params_of(url).model_dump(mode="json")
        Path("params.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        ended = posttrain("check-world", "http_env")
    assert ended.exit_code == 0, ended.stdout + ended.stderr
    assert "has scores, opening, is_over, close; without expert, realise_anew, wanted" in ended.stdout
    assert "19 rules hold, 0 broken, 12 not tried" in ended.stdout


def test_a_broken_rule_is_told_with_task_and_remedy_and_ends_with_65(ours):
    ended = posttrain("check-world", "tests.world_check.planted:IdsWithoutSplit", "--num-tasks", 2)
    assert ended.exit_code == 65
    told = "FAILED     tasks: no id stands twice\n           'box-0' is the id of 5 tasks (sft, rl, dev, test, "
    assert told in ended.stdout
    assert "put the split into the id" in ended.stdout
    assert "breaks 1 of its rules" in ended.stderr


def test_as_json_it_is_one_object(ours):
    ended = posttrain("check-world", "tests.world_check.planted:WantsNothing", "--num-tasks", 2, "--json")
    record = json.loads(ended.stdout)
    assert (ended.exit_code, record["is_kept"], record["reward"]) == (65, False, "the default reward")
    assert [one["rule"] for one in record["findings"] if one["state"] == "FAILED"] == ["wanted: says a goal in a line"]


def test_the_section_and_the_count_of_params_yaml_are_those_of_the_world_that_it_names(repository, ours):
    text = (repository / "params.yaml").read_text(encoding="utf-8").replace("num_test_tasks: 480", "num_test_tasks: 3")
    shutil.copy(repository / "params.yaml", ours / "params.yaml")
    (ours / "other.yaml").write_text(text, encoding="utf-8")
    ended = posttrain("check-world", "stocks", "--params", "other.yaml", "--num-tasks", 4)
    assert ended.exit_code == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("stocks: 4 sft, 4 rl, 4 dev, 3 test, 3 test_paraphrase; the reward of other.yaml")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tyo", "there is no world 'tyo'; .* Did you mean 'toy'"),
        ("nowhere.at_all:World", "cannot be imported"),
        ("json:dumps", "json:dumps gives a str without name, tools, tasks, open|cannot be made"),
        ("tests.world_check.planted:call", "cannot be made .TypeError"),
    ],
)
def test_a_world_that_cannot_be_made_ends_with_78(ours, name, why):
    ended = posttrain("check-world", name)
    assert ended.exit_code == 78
    assert re.search(why, ended.stderr), ended.stderr


def test_no_task_at_all_and_a_params_yaml_that_is_not_there_are_refused_with_78(ours):
    assert posttrain("check-world", "toy", "--num-tasks", 0).exit_code == 78
    assert posttrain("check-world", "toy", "--params", "absent.yaml").exit_code == 78
