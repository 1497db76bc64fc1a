"""Each rule on metrics as they come from a healthy training until something happens to it."""

import json
import random

import pytest
import yaml

from posttrain.config.params import ParamsError, parse_params
from posttrain.runtime.exits import StoppedByAlarm
from posttrain.tracking.alarms import RULES, Alarms, alarms_markdown, read_alarms
from posttrain.tracking.metrics_log import MetricsLog, read_metrics
from posttrain.tracking.params import AlarmParams

HEALTHY = {
    "frac_reward_zero_std": 0.5,
    "frac_tokens_nonzero_advantage": 0.6,
    "turns": 3.0,
    "length": 48.0,
    "entropy": 0.05,
    "kl": 0.03,
    "reward_mean": 0.6,
    "success": 0.6,
    "strict_success": 0.55,
    "logprob_gap_turn": 1e-6,
    "demonstration_loss": 0.04,
}
PLANTED = {
    "zero_std": {"frac_reward_zero_std": 1.0, "frac_tokens_nonzero_advantage": 0.05},
    "no_signal": {"frac_tokens_nonzero_advantage": 0.0},
    "turns_collapse": {"turns": 1.0, "length": 16.0},
    "short_turns": {"turns": 4.5, "length": 24.0},
    "entropy_collapse": {"entropy": 0.002},
    "entropy_eruption": {"entropy": 1.5},
    "kl": {"kl": 2.0},
    "reward_hacking": {"reward_mean": 0.8, "success": 0.65, "strict_success": 0.2},
    "engine_mismatch": {"logprob_gap_turn": 0.7},
    "forgetting": {"demonstration_loss": 1.2},
}


@pytest.fixture
def limits(repository):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    return AlarmParams.model_validate(content["train_policy"]["alarms"])


def stream(*changes, seed=0):
    """A line for each change, over healthy values that differ by a tenth from step to step."""
    draws = random.Random(seed)
    for step, change in enumerate(changes, start=1):
        yield {**{name: value * draws.uniform(0.9, 1.1) for name, value in HEALTHY.items()}, **change, "step": step}


def raised(limits, lines):
    alarms = Alarms(limits, on_alarm="warn")
    return [(alarm.step, alarm.name) for line in lines for alarm in alarms.observe(line)]


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
@pytest.mark.parametrize("at", [6, 60])
def test_a_planted_failure_raises_its_rule_and_no_other_within_five_steps(limits, name, at):
    lines = stream(*[{}] * at, *[PLANTED[name]] * 5)

    [(step, rule)] = raised(limits, lines)
    assert rule == name
    assert at < step <= at + 5


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_training_raises_nothing(limits, seed):
    assert raised(limits, stream(*[{}] * 100, seed=seed)) == []


def test_the_committed_training_raises_nothing(limits, repository):
    assert raised(limits, read_metrics(repository / "reports/train_policy/metrics.jsonl")) == []


def test_a_rule_is_not_repeated_until_it_has_been_quiet(limits):
    bad = PLANTED["kl"]
    lines = stream(*[{}] * 4, *[bad] * 9, {}, *[bad] * 4)
    n = limits.steps
    assert raised(limits, lines) == [(4 + n, "kl"), (14 + n, "kl")]


@pytest.mark.parametrize(
    "before", [{"round": 1, "strict_success": 0.1, "reward_mean": 0.1}, {"loss": 2.0}, {"dev_success": 0.1}]
)
def test_the_lines_of_an_earlier_phase_are_not_the_start_of_the_one_online(limits, before):
    training = [*stream(*[{}] * 9, *[PLANTED["zero_std"]] * 9)]
    assert raised(limits, training)
    assert raised(limits, [{"step": 0, **before}, *training]) == raised(limits, training)


def test_a_null_counts_as_infinite(limits):
    assert raised(limits, stream(*[{}] * 4, *[{"kl": None}] * 4)) == [(4 + limits.steps, "kl")]


def test_success_that_falls_with_the_reward_is_no_hacking(limits):
    assert raised(limits, stream(*[{}] * 9, *[{"reward_mean": 0.3, "success": 0.2, "strict_success": 0.2}] * 5)) == []


def test_hacking_is_seen_where_success_has_risen_before(limits):
    """Success at the end is still above that of the start."""
    good, bad = {"reward_mean": 0.9, "strict_success": 0.9}, {"reward_mean": 0.95, "strict_success": 0.7}
    assert raised(limits, stream(*[{}] * 9, *[good] * 9, *[bad] * 5)) == [(18 + limits.steps, "reward_hacking")]


def test_null_turns_a_rule_off(limits):
    off = limits.model_copy(update={"kl": None})
    assert raised(off, stream(*[{}] * 4, *[PLANTED["kl"]] * 5)) == []


def write(path, limits, lines, *, earlier="", on_alarm="warn"):
    with MetricsLog(path, earlier=earlier, alarms=Alarms(limits, on_alarm=on_alarm)) as log:
        for line in lines:
            log.write(line["step"], {name: value for name, value in line.items() if name != "step"})
    return path.read_text(encoding="utf-8")


def test_the_line_names_its_alarms_and_other_lines_are_as_before(tmp_path, limits, capsys):
    lines = list(stream(*[{}] * 4, *[PLANTED["kl"] | PLANTED["entropy_eruption"]] * 5))
    watched = write(tmp_path / "watched", limits, lines).splitlines()
    with MetricsLog(tmp_path / "unwatched") as log:
        for line in lines:
            log.write(line["step"], line)
    unwatched = (tmp_path / "unwatched").read_text(encoding="utf-8").splitlines()

    at = 4 + limits.steps
    assert [number for number, pair in enumerate(zip(watched, unwatched, strict=True), 1) if len(set(pair)) == 2] == [
        at
    ]
    assert json.loads(watched[at - 1])["alarms"] == "entropy_eruption kl"
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == [
        f"step {at}, alarm entropy_eruption",
        f"step {at}, alarm kl",
    ]
    assert "KL to the start 2 nats per token, above 0.5. Advice: " in said[1]
    assert [(step, name) for step, name, _ in read_alarms(map(json.loads, watched))] == [
        (at, "entropy_eruption"),
        (at, "kl"),
    ]


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_training_that_goes_on_writes_the_bytes_of_an_undisturbed_one(tmp_path, limits, cut):
    lines = list(stream(*[{}] * 5, *[PLANTED["reward_hacking"] | PLANTED["kl"]] * 5, *[{}] * 4))
    whole = write(tmp_path / "whole", limits, lines)
    earlier = "".join(whole.splitlines(keepends=True)[:cut])

    assert "alarms" in whole
    assert write(tmp_path / "resumed", limits, lines[cut:], earlier=earlier) == whole


def test_stop_ends_the_training_when_the_line_is_on_the_disk(tmp_path, limits):
    lines = list(stream(*[{}] * 5, *[PLANTED["kl"]] * 9))
    with pytest.raises(StoppedByAlarm, match=r"alarm kl: KL to the start 2 .* set on_alarm to warn") as end:
        write(tmp_path / "metrics.jsonl", limits, lines, on_alarm="stop")

    written = read_metrics(tmp_path / "metrics.jsonl")
    assert end.value.code == 70
    assert (len(written), written[-1]["alarms"]) == (5 + limits.steps, "kl")


def test_a_limit_that_says_nothing_is_refused(repository):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    content["train_policy"]["alarms"] |= {"steps": 0, "turns_collapse": 1.5, "forgetting": 0.5}
    with pytest.raises(ParamsError) as error:
        parse_params(content, source="params.yaml")
    wrong = {one.key.removeprefix("train_policy.alarms.") for one in error.value.problems}
    assert wrong == {"steps", "turns_collapse", "forgetting"}


def test_an_artifact_has_a_row_for_each_alarm():
    assert alarms_markdown([{"step": 1}]) == "No alarm was raised."
    rows = alarms_markdown([{"step": 1}, {"alarms": "kl of_tomorrow", "step": 2}]).splitlines()
    assert rows[2].startswith("| 2 | kl | the policy runs away")
    assert rows[3] == "| 2 | of_tomorrow |  |"
