"""Two gloo processes on this machine's CPU through `accelerate launch`: every algorithm under DDP
and FSDP, every way to die.

`make test NEEDS=processes`.
"""

import json
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))

from launched import episodes, finish, first_steps, follow, run, start

pytestmark = pytest.mark.needs_processes
RUNS = [("sft", "ddp"), ("sft", "fsdp"), ("dpo", "ddp"), ("dpo", "fsdp"), ("kto", "ddp"), ("orpo", "ddp")]
RUNS += [("reward_model", "ddp"), ("reward_model", "fsdp")]
FIRST_STEPS = [pytest.param(*run, marks=pytest.mark.xdist_group(run[0])) for run in RUNS]  # one run alone for each


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The result of one process, for each algorithm and adapter, once."""
    results = {}

    def result(algorithm, *, is_adapted=False):
        if (algorithm, is_adapted) not in results:
            root = tmp_path_factory.mktemp(algorithm)
            results[algorithm, is_adapted] = root, run(root, algorithm=algorithm, is_adapted=is_adapted)
        return results[algorithm, is_adapted]

    return result


def close(found, expected, *, abs_gap=1e-4, but=()):
    assert set(found) == set(expected)
    assert {name: found[name] for name in found if name not in but} == pytest.approx(
        {name: expected[name] for name in expected if name not in but}, abs=abs_gap
    )


@pytest.mark.parametrize(("algorithm", "config"), FIRST_STEPS)
def test_the_first_step_is_that_of_one_process(algorithm, config, alone, tmp_path):
    _, expected = alone(algorithm)
    found = run(tmp_path, config, algorithm=algorithm)

    assert found["losses"][0] == pytest.approx(expected["losses"][0], abs=1e-4)
    # a policy that is its reference has rewards of 0, whose order in pairs is that of rounding
    close(found["metrics"][0], expected["metrics"][0], but=("pair_accuracy",) if algorithm in ("dpo", "kto") else ())
    assert found["losses"] == pytest.approx(
        expected["losses"], abs=0.01
    )  # 12 steps later: rounding that Muon has blown up
    if algorithm == "sft":
        assert [set(line) for line in found["metrics"]] == [set(line) for line in expected["metrics"]]
        dev, expected_dev = (
            [line["eval_loss"] for line in result["metrics"] if "eval_loss" in line] for result in (found, expected)
        )
        assert dev == pytest.approx(expected_dev, abs=0.01)
        assert dev


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [("sft", "fsdp"), ("dpo", "ddp"), ("kto", "ddp"), ("reward_model", "fsdp"), ("online", "fsdp")],
)
def test_the_first_steps_are_those_of_one_process_within_a_number_of_tokens(algorithm, config, alone, tmp_path):
    """Rows are dealt out, parts have unequal numbers of them, logits come in pieces."""
    _, expected = alone(algorithm)
    found = run(tmp_path, config, algorithm=algorithm, tokens_at_once=30, max_logits=50)
    by_part = ("entropy", "margin", "margin_chosen", "margin_rejected", "pair_accuracy", "clip_low", "clip_high")
    for one, other in zip(found["metrics"][:2], expected["metrics"], strict=False):
        close(one, other, but=by_part if algorithm in ("kto", "dpo", "online") else ())


@pytest.mark.parametrize("is_adapted", [False, True])
@pytest.mark.parametrize("config", ["ddp", "fsdp"])
def test_the_first_step_of_learning_online_is_that_of_one_process(config, is_adapted, alone, tmp_path):
    root, expected = alone("online", is_adapted=is_adapted)
    found = run(tmp_path, config, algorithm="online", is_adapted=is_adapted)

    shared = ("clip_low", "clip_high")  # of a process's own tokens
    close(found["metrics"][0], expected["metrics"][0], but=shared, abs_gap=1e-3 if is_adapted else 1e-4)
    for one, other in zip(episodes(root, 1), episodes(tmp_path, 1), strict=True):
        assert (one["task_id"], one["seed"], one["token_ids"]) == (other["task_id"], other["seed"], other["token_ids"])
        assert one["advantage"] == pytest.approx(other["advantage"], abs=1e-4)
    assert len(found["metrics"]) == 12


@pytest.mark.parametrize(("config", "is_adapted"), [("ddp", False), ("fsdp", True)])
def test_a_critic_of_several_processes_is_that_of_one(config, is_adapted, alone, tmp_path):
    _, expected = alone("critic", is_adapted=is_adapted)
    found = run(tmp_path, config, algorithm="critic", is_adapted=is_adapted)
    for line, of_one in zip(found["metrics"], expected["metrics"], strict=True):
        close(line, of_one, abs_gap=1e-3)
    for trunk in ("shared", "apart"):
        first, *_, last = (line[f"value_loss_{trunk}"] for line in found["metrics"])
        assert last < first


def test_learning_online_goes_on_with_another_number_of_processes(alone, tmp_path):
    for config, at in (("fsdp", 5), ("ddp", 9)):
        code, errors = finish(start(tmp_path, config, algorithm="online", at=at, kill=0))
        assert code == 75, errors
    assert len(run(tmp_path, None, algorithm="online")["metrics"]) == 12
    assert first_steps(tmp_path) == [1, 5, 9]


def test_adapters_of_a_reward_model_are_trained_by_several_processes_too(alone, tmp_path):
    _, expected = alone("reward_model", is_adapted=True)
    found = run(tmp_path, "fsdp", algorithm="reward_model", is_adapted=True)

    close(
        found["metrics"][0], expected["metrics"][0], but=("grad_norm", "loss", "margin", "pair_accuracy"), abs_gap=1e-3
    )  # dropout is drawn anew
    assert found["losses"][-1] == pytest.approx(expected["losses"][-1], abs=0.05)


@pytest.mark.parametrize(("config", "number"), [("ddp", signal.SIGTERM), ("fsdp", signal.SIGUSR1)], ids=["ddp", "fsdp"])
def test_a_stop_signal_stops_all_after_one_step_and_the_run_goes_on_to_the_same_weights(config, number, tmp_path):
    changes = {"max_steps": 40}
    whole = run(tmp_path / "whole", config, algorithm="sft", changes=changes)
    root = tmp_path / "cut"
    process = start(root, config, algorithm="sft", changes=changes, at=5)
    wait_until((root / "step").exists)
    process.send_signal(number)
    code, errors = finish(process)

    assert code == 75, errors
    assert "asked to stop after step" in errors
    assert "Traceback" not in errors
    assert errors.count("asked to stop") == 1
    assert run(root, config, algorithm="sft", changes=changes) == whole


@pytest.mark.parametrize("launches", [(None, "ddp", "fsdp"), ("fsdp", None)])
def test_a_run_goes_on_with_another_number_of_processes_and_again(launches, alone, tmp_path):
    _, expected = alone("sft")
    *killed, last = launches
    for config, at in zip(killed, (5, 9), strict=False):
        code, errors = finish(start(tmp_path, config, algorithm="sft", at=at, kill=0))
        assert code == (75 if config else -signal.SIGKILL), errors
    found = run(tmp_path, last, algorithm="sft")

    assert first_steps(tmp_path) == [1, 5, 9][: len(launches)], "each goes on from the checkpoint of the one before"
    assert len(found["metrics"]) == len(expected["metrics"])
    assert found["losses"] == pytest.approx(expected["losses"], abs=0.01)


@pytest.mark.parametrize("killed", [0, 1])
def test_one_that_is_killed_ends_all_and_the_run_goes_on(killed, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    code, errors = finish(start(tmp_path, "ddp", algorithm="online", at=6, kill=killed))

    assert code == 75
    assert f"process {killed + 1} of 2 was killed from outside" in errors
    assert "Traceback" not in errors
    assert left_over(tmp_path) == []
    assert not list((tmp_path / "tmp").glob("torchelastic*"))
    assert len(run(tmp_path, "ddp", algorithm="online")["metrics"]) == 12


@pytest.mark.parametrize("rank", [0, 1])
def test_an_end_with_a_meaning_is_the_stages(rank, tmp_path):
    code, errors = finish(start(tmp_path, "ddp", algorithm="sft", at=2, refuse=rank))
    assert code == 78
    assert "wrong configuration: a knob is wrong" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("rank", [0, 1])
def test_a_bug_shows_its_traceback_once(rank, tmp_path):
    code, errors = finish(start(tmp_path, "ddp", algorithm="sft", at=2, fail=rank))
    assert code == 1
    assert errors.count("Traceback (most recent call last)") == 1
    assert "ZeroDivisionError: a bug of ours" in errors


def test_a_killed_frame_leaves_no_process_behind(tmp_path):
    process = start(tmp_path, "ddp", algorithm="sft", changes={"max_steps": 20_000}, at=3)
    wait_until((tmp_path / "step").exists)
    assert len(left_over(tmp_path)) == 2
    process.kill()
    process.communicate()
    deadline_s = time.monotonic() + 20
    while left_over(tmp_path) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert left_over(tmp_path) == []


def on_two_nodes(root, killed=None, **what):
    """Exit code and output of the first node's stage, and of the second's follower, once one of
    them was killed in mid-step."""
    follower, process = follow(root), start(root, "ddp", nodes=2, **what)
    workers = []
    if killed is not None:
        wait_until((root / "step").exists, limit_s=240)
        workers = psutil.Process(follower.pid).children(recursive=True)
        (process, follower)[killed].kill()
    ends = finish(process), finish(follower)
    psutil.wait_procs(workers, timeout=20)
    assert not any(worker.is_running() for worker in workers)
    assert left_over(root) == []
    return ends


@pytest.mark.parametrize("algorithm", ["sft", "online"])
def test_two_nodes_make_the_bytes_of_two_processes_on_one(algorithm, tmp_path):
    on_one = run(tmp_path / "one", "ddp", algorithm=algorithm)
    (code, errors), (code_of_other, _) = on_two_nodes(tmp_path / "two", algorithm=algorithm)
    assert (code, code_of_other) == (0, 0), errors
    assert json.loads((tmp_path / "two" / "result.json").read_text()) == on_one


def test_a_process_that_dies_on_one_node_ends_those_of_all_and_the_run_goes_on_to_the_same_bytes(tmp_path):
    on_one = run(tmp_path / "one", "ddp", algorithm="sft")
    for what, code, message in (
        ({"at": 3, "kill": 1}, 75, "process 2 of 2 was killed from outside"),
        ({"at": 5, "refuse": 1}, 78, "wrong configuration: a knob is wrong"),
        ({}, 0, "done in"),
    ):
        (found, errors), _ = on_two_nodes(tmp_path / "two", algorithm="sft", **what)
        assert (found, message in errors, "Traceback" in errors) == (code, True, False), errors
    assert json.loads((tmp_path / "two" / "result.json").read_text()) == on_one


@pytest.mark.parametrize(
    ("killed", "codes"), [(0, (-signal.SIGKILL, 0)), (1, (75, -signal.SIGKILL))], ids=["runner", "follower"]
)
def test_a_node_that_dies_ends_the_others_and_leaves_no_process_on_any(killed, codes, tmp_path):
    changes = {"max_steps": 20_000}
    (code, errors), (code_of_other, _) = on_two_nodes(tmp_path, killed, algorithm="sft", changes=changes, at=3)
    assert (code, code_of_other) == codes, errors
    assert ("of 2 nodes is gone" in errors) == (killed == 1)


def left_over(root):
    """The processes of the stage that are still there."""
    numbers = [int(path.read_text()) for path in (root / ".posttrain" / "workers" / "tiny_stage").glob("*.pid")]
    return [
        number
        for number in numbers
        if psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    ]
