"""Learning from groups that end when they like."""

import asyncio
import json
import os
import signal

import numpy as np
import pytest
import tiny_runs
import yaml
from tiny import tiny_model
from tiny_runs import WordEpisodes, run_here

from posttrain.models import distributed
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.train.online.collecting import collecting
from posttrain.train.online.params import OnlineParams

KNOBS = {"max_staleness": 4, "tasks_per_step": 4, "group_size": 8}


class SlowWords(WordEpisodes):
    """Every third group takes as long as several steps."""

    names = ()

    async def play(self, tasks, seeds, *, name, gate):
        self.names = (*self.names, name)
        await asyncio.sleep(0.3 if int(name.split()[1]) % 3 == 0 else 0.001)
        async with gate.message():
            return self.run(tasks, seeds)


def trained(folder, model=None, **changes):
    model = model or tiny_model()
    return run_here("online", folder, model, source=SlowWords(model), **KNOBS | changes)


def test_steps_learn_from_what_ends_first_within_their_bound(tmp_path):
    _, lines = trained(tmp_path, max_steps=40)
    staleness = [line["staleness"] for line in lines]
    assert staleness[0] == 0
    assert 2 <= max(staleness) <= 4
    assert max(line["logprob_gap_max"] for line in lines if line["staleness"] > 1) > 1e-3
    rewards = [line["reward_mean"] for line in lines]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:5]) + 0.04


def test_a_run_that_was_stopped_goes_on_with_groups_of_other_seeds(tmp_path):
    model = tiny_model()
    source = SlowWords(model)
    with pytest.raises(Interrupted):
        run_here("online", tmp_path, model, source=source, on_step=lambda step, *_: stop(step), **KNOBS)
    kept = json.loads(next(tmp_path.glob("checkpoint-*/online.json")).read_text())
    begun = kept["state"]["num_begun"]
    assert begun == 4 * (kept["step"] + 2)
    model = tiny_model()
    source = SlowWords(model)
    _, lines = run_here("online", tmp_path, model, source=source, **KNOBS)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert source.names[0] == f"group {begun}"


def stop(step):
    if step == 6:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_failure_in_play_ends_the_training_with_it(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConfigurationError("the world is wrong")

    monkeypatch.setattr(tiny_runs, "play_words", fail)
    with pytest.raises(ConfigurationError, match="the world is wrong"):
        trained(tmp_path)


def test_engines_in_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(distributed, "count", lambda: 2)
    values = yaml.safe_load(OnlineParams.example) | {"type": "online", "max_staleness": 4}
    source = SlowWords(tiny_model())
    expected = "max_staleness is 4, and each of 2 processes plays"
    with (
        pytest.raises(ConfigurationError, match=expected),
        collecting(None, source, None, OnlineParams.model_validate(values), 4, seed=1),
    ):
        pass
