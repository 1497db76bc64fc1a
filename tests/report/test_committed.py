"""How far a figure may be from the committed one, on the processor that made it and on another."""

import json

import pytest

from posttrain.evals.processor import processor_kind
from posttrain.report.committed import Comparison, compare_all, compare_with_committed, whose_figures
from posttrain.report.sources import Evaluation
from tests.report.example import evaluation
from tests.report.test_table import commit

AMD, INTEL = "AMD, AVX-512 with bfloat16", "Intel, AVX2"


def computed(rate: float, processor: str) -> Evaluation:
    return Evaluation.model_validate({**evaluation(rate), "processor": processor})


@pytest.mark.parametrize(
    ("now", "verdict"), [(0.75, "as committed"), (0.695, "within"), (0.833, "within"), (0.66, "OUTSIDE")]
)
def test_on_another_processor_a_figure_may_be_as_far_as_two_seeds_are(now, verdict):
    # seeds at 70, 73 and 76 %: a standard deviation of 3 points, so 1.96 √2 3 = 8.3 points
    one = Comparison("sft", computed(now, INTEL), computed(0.75, AMD), (0.70, 0.73, 0.76))
    assert one.bounds == pytest.approx((0.75 - 0.08316, 0.75 + 0.08316), abs=1e-5)
    assert one.verdict == verdict


@pytest.mark.parametrize(
    ("here", "there", "rates"),
    [(AMD, AMD, (0.7, 0.8)), ("", AMD, (0.7, 0.8)), (AMD, "", (0.7, 0.8)), (AMD, INTEL, (0.7,))],
)
def test_the_committed_interval_holds_on_one_kind_of_processor_and_where_nothing_better_is_known(here, there, rates):
    one = Comparison("sft", computed(0.69, here), computed(0.75, there), rates)
    assert (one.bounds, one.verdict) == ((0.70, 0.80), "OUTSIDE")


def test_the_sentence_names_both_processors_and_where_the_bounds_come_from(make_reports):
    rates = {f"seed_{seed}": rate for seed, rate in enumerate((0.86, 0.90, 0.94), start=1)}
    arms = {
        name: {"overrides": {"seed": int(name[-1])}, "policies": {"policy": arm(rate)}} for name, rate in rates.items()
    }
    other_world = {"overrides": {"world.seed": 2002}, "policies": {"policy": arm(0.2)}}
    folder = make_reports(
        {
            "evaluate/policy.json": evaluation(0.9) | {"processor": AMD},
            "seeds.json": {**arms, "world_seed_2002": other_world},
        }
    )
    commit(folder.parent)
    (folder / "evaluate/policy.json").write_text(json.dumps(evaluation(0.84) | {"processor": INTEL}))
    # a standard deviation of 4 points: 1.96 √2 4 = 11.1
    assert compare_with_committed(folder) == (
        f"policy: 84.0 %, and 90.0 % is committed, of another kind of processor ({AMD}; here: {INTEL}): figures differ "
        "by rounding. It is within 78.9 … 100.0 %, as far as two seeds on one machine lie apart."
    )
    assert whose_figures(folder) == compare_with_committed(folder)
    [policy] = [one for one in compare_all(folder.parent, folder.relative_to(folder.parent)) if one.policy == "policy"]
    assert (policy.verdict, policy.seed_rates) == ("within", [0.86, 0.90, 0.94])


def arm(rate: float) -> dict[str, float]:
    return {"success_rate": rate, "ci_low": rate, "ci_high": rate, "num_tasks": 40, "pass_hat_4": rate}


@pytest.mark.parametrize(
    ("vendor", "flags", "kind"),
    [
        ("AuthenticAMD", "fpu avx avx2 fma", "AMD, AVX2"),
        ("AuthenticAMD", "avx2 avx512f avx512_bf16", "AMD, AVX-512 with bfloat16"),
        ("GenuineIntel", "avx2 avx512f avx512_vnni", "Intel, AVX-512"),
        ("HygonGenuine", "avx2", "HygonGenuine, AVX2"),
    ],
)
def test_a_kind_of_processor_is_its_maker_and_its_instructions(tmp_path, vendor, flags, kind):
    cpus = tmp_path / "cpuinfo"
    cpus.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: X\nflags\t\t: {flags}\n\n" * 2)
    assert processor_kind(cpus) == kind


def test_a_machine_without_a_list_of_processors_is_its_architecture(tmp_path):
    assert "," not in processor_kind(tmp_path / "absent")
