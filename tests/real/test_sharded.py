"""Models in shards (FSDP) on processes of this machine: one copy of the weights, which servers play
with and any number of processes goes on from.

`make test NEEDS=processes`.
"""

import contextlib
import itertools
import os
import random
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.rollout.token_server import TokenServer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))

from launched import episodes, finish, first_steps, run, start
from sharded_runs import write_large_model

pytestmark = pytest.mark.needs_processes
KNOBS = {"max_steps": 6, "kl": {"type": "loss", "weight": 0.1}, "updates_per_step": 2}
WHAT = {"algorithm": "served", "changes": KNOBS}
NUM_KILLS = int(os.environ.get("KILLS", "2"))


@pytest.fixture
def server():
    started = TokenServer()
    yield started
    started.stop()


@pytest.mark.parametrize(("num", "sync"), [(2, "gloo"), (4, "disk")])
def test_a_server_plays_with_the_weights_of_shards_and_the_first_step_is_that_of_one_process(
    server, tmp_path, num, sync
):
    expected = run(tmp_path / "one", url=server.url, **WHAT)
    num_loads = server.num_loads
    found = run(tmp_path / "shards", "fsdp", num=num, url=server.url, sync=sync, **WHAT)

    assert server.num_loads - num_loads == num_loads
    assert max(line["logprob_gap_max"] for line in found["metrics"]) <= 1e-4
    assert len({line["reward_mean"] for line in found["metrics"]}) > 1
    shared = ("clip_low", "clip_high")  # of a process's own tokens
    first, of_one = (
        {name: one for name, one in line["metrics"][0].items() if name not in shared} for line in (found, expected)
    )
    assert first == pytest.approx(of_one, abs=1e-4)
    for one, other in zip(episodes(tmp_path / "one", 2), episodes(tmp_path / "shards", 2), strict=True):
        assert one["token_ids"] == other["token_ids"]
        assert one["logprobs"] == pytest.approx(other["logprobs"], abs=1e-3)
    # the dev tasks were played by the last weights
    trained = torch.load(tmp_path / "shards" / "weights.pt", weights_only=True)
    assert all(tensor.equal(trained[name]) for name, tensor in server._model.state_dict().items())


# Muon makes rounding, which another number of processes changes, as long as a step
@pytest.mark.parametrize(("nums", "optimizer"), [((2, 2), "muon"), ((2, 4), "adamw"), ((4, 2), "adamw")])
def test_a_killed_run_of_shards_goes_on_with_any_number_of_processes(server, tmp_path, nums, optimizer):
    what = {**WHAT, "changes": {**KNOBS, "optimizer": optimizer, "lr": 3e-3}}
    whole = run(tmp_path / "whole", "fsdp", num=nums[0], url=server.url, **what)
    code, errors = finish(start(tmp_path / "cut", "fsdp", num=nums[0], url=server.url, at=5, kill=0, **what))
    assert code == 75, errors
    assert {path.suffix for path in (tmp_path / "cut").rglob("checkpoint-4/*")} >= {".distcp", ".json"}
    found = run(tmp_path / "cut", "fsdp", num=nums[1], url=server.url, **what)

    assert first_steps(tmp_path / "cut") == [1, 5]
    if nums[0] == nums[1]:
        assert found == whole
    weights, expected = (torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("cut", "whole"))
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-4)


def test_random_kills_of_any_process_and_resumes_by_one_two_or_four(server, tmp_path):
    """`KILLS=20 python -m pytest -s tests/real/test_sharded.py -k random_kills` kills as often."""
    what = {**WHAT, "url": server.url, "changes": {**KNOBS, "optimizer": "adamw", "lr": 3e-3, "max_steps": 20}}
    run(tmp_path / "whole", "fsdp", **what)
    expected = torch.load(tmp_path / "whole" / "weights.pt", weights_only=True)
    draw, killed = random.Random(NUM_KILLS), []
    for number in itertools.count():
        root = tmp_path / f"round {number}"
        while (one := killed_at_random(root, draw, what, is_spared=len(killed) >= NUM_KILLS)) is not None:
            killed.append(one)
            print(f"kill {len(killed)}: {one}", flush=True)
        weights = torch.load(root / "weights.pt", weights_only=True)
        gap = max(float((weights[name] - weight).abs().max()) for name, weight in expected.items())
        print(f"round {number}: first steps {first_steps(root)}, largest gap of a weight {gap:.1e}", flush=True)
        assert gap <= 1e-4
        if len(killed) >= NUM_KILLS:
            return


def killed_at_random(root, draw, what, *, is_spared):
    """Goes on with the run by some number of processes and kills one; None where it ended first."""
    num, steps, more = draw.choice([1, 2, 4]), root / "steps", draw.randrange(1, 10)
    root.mkdir(exist_ok=True)
    steps.touch()
    before = steps.read_text().count("\n")
    process = start(root, "fsdp" if num > 1 else None, num=num, **what)
    while process.poll() is None and (is_spared or steps.read_text().count("\n") < before + more):
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.2))
    with contextlib.suppress(psutil.NoSuchProcess):  # the run may end by itself meanwhile
        below = psutil.Process(process.pid).children(recursive=True)
        ranks = [one for one in below if num == 1 or "RANK" in one.environ()]
        if ranks and not is_spared:
            draw.choice(ranks).kill()
    code, errors = finish(process)
    assert code in (0, 75), errors
    return f"one of {num} processes after step {steps.read_text().split()[-1]}" if code else None


def test_adapters_of_shards_go_to_a_server_alone_and_into_the_weights_at_the_end(server, tmp_path):
    found = run(tmp_path / "served", "fsdp", url=server.url, is_adapted=True, **WHAT)
    assert max(line["logprob_gap_max"] for line in found["metrics"]) <= 1e-4
    assert len(server.adapters) == 1
    merged = run(tmp_path / "merged", "fsdp", algorithm="merged")["metrics"]
    assert max(line["gap"] for line in merged) <= 1e-6


def test_no_process_but_the_first_holds_the_model_and_that_one_only_while_it_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # what is freed is given back, as with large weights
    whole = write_large_model(tmp_path / "model")
    first, *others = run(tmp_path, "fsdp", num=4, algorithm="held")["metrics"]

    limits = {"load": 0.6, "reference": 0.5, "write": 0.2, "save": 0.6, "resume": 0.6, "trained": 0.2}
    for name, limit in limits.items():
        for one in others:
            assert one[name] < limit * whole, name
        assert first[name] < (1.6 if name == "load" else limit) * whole, name
    served, trained = (load_file(tmp_path / name / "model.safetensors") for name in ("served", "trained"))
    assert all(tensor.equal(served[name]) for name, tensor in trained.items())
    assert trained.keys() == served.keys() - {"lm_head.weight"}


def test_a_stage_trains_a_model_that_it_has_loaded_in_shards(tmp_path):
    """As stages do: it is in shards before the trainer has arguments, which reset accelerate."""
    losses, changes = [], {"max_steps": 2, "eval_every_steps": 2, "lr": 1e-3, "optimizer": "adamw"}
    for root, config in ((tmp_path / "one", None), (tmp_path / "shards", "fsdp")):
        write_large_model(root / "model")
        lines = run(root, config, algorithm="loaded", changes=changes)["metrics"]
        losses.append([line["loss"] for line in lines if "loss" in line])
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)
