"""Play without a pause: which groups a step takes, and by which weights each message is written."""

import asyncio
import copy
import math
import random

import pytest
import torch

from posttrain.rollout.asynchronous import AsynchronousRollouts, Gate, GatedEngine, GroupInPlay, first_in_time
from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.rollout.engines.torch_engine import TorchEngine
from tests.rollout.tiny_models import tiny_model


def groups(*deadlines, start=0):
    return [GroupInPlay(start + place, deadline) for place, deadline in enumerate(deadlines)]


@pytest.mark.parametrize(
    ("over", "in_play", "expected"),
    [
        ((7, 5, 6), (6,), [7, 5]),
        ((6, 7), (5,), [6]),  # the other place is the last one's
        ((7, 7, 7), (6, 6), [7, 7]),
        ((7, 7, 7), (6, 6, 5), [7]),  # next step has room for two
        ((9,), (), [9]),
        ((4, 9, 9), (), [4, 9]),  # past its deadline it comes at once
        ((9, 9, 4), (), [9, 4]),
    ],
)
def test_groups_are_taken_as_they_end_but_for_whom_another_would_be_late(over, in_play, expected):
    taken = first_in_time(groups(*over), groups(*in_play, start=10), 2, step=5)
    assert [one.deadline for one in taken] == expected


@pytest.mark.parametrize("seed", range(20))
def test_no_group_is_late_however_long_each_takes(seed):
    rng, count, staleness = random.Random(seed), 3, 2 + seed % 5
    in_play, over, number, num_overtaken = [], [], 0, 0
    for step in range(40):
        for _ in range(count * (1 + math.ceil(staleness / 2)) - len(in_play) - len(over)):
            in_play.append(GroupInPlay(number, step + staleness))
            number += 1
        while len(taken := first_in_time(over, in_play, count, step=step)) < count:
            over.append(in_play.pop(rng.randrange(len(in_play))))
        assert all(one.deadline >= step for one in taken)
        num_overtaken += any(other.number < one.number for one in taken for other in in_play)
        over = [one for one in over if one not in taken]
    assert num_overtaken, "slow groups hold nobody"


def test_a_shut_gate_awaits_what_is_written_and_puts_off_what_ends():
    async def run():
        gate, ends, order = Gate(), asyncio.Event(), []

        async def write(name):
            async with gate.message():
                order.append(f"{name} begins")
                await ends.wait()
            order.append(f"{name} ends")

        first = asyncio.create_task(write("first"))
        await asyncio.sleep(0)
        shutting = asyncio.create_task(gate.shut())
        await asyncio.sleep(0)
        second = asyncio.create_task(write("second"))
        gate.when_open(lambda: order.append("released"))
        await asyncio.sleep(0)
        assert not shutting.done()
        ends.set()
        await asyncio.gather(first, shutting)
        assert order == ["first begins", "first ends"]
        gate.open()
        await second
        assert order[2:] == ["released", "second begins", "second ends"]

    asyncio.run(run())


def test_a_message_behind_new_weights_is_written_by_them_in_a_context_that_the_old_ones_wrote():
    model = tiny_model("qwen3")
    old = copy.deepcopy(model)
    engine = TorchEngine(model, num_slots=2, max_context_tokens=40)

    class Source:
        def refresh(self):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(1.3)
            engine.refresh_weights()

        async def play(self, tasks, seeds, *, name, gate):
            gated, context, found = GatedEngine(engine, gate), [5, 6, 7], []
            for turn in range(2):
                request = GenerateRequest(name, context, 4, 1.0, 3, frozenset({1}))
                written = await gated.generate(request)
                found.append((list(context), written))
                context = [*context, *written.token_ids, 8]
                if turn == 0:
                    is_between.set()
                    await go_on.wait()  # a tool takes its time
            gated.release(name)
            return found

    with AsynchronousRollouts(Source()) as rollouts:
        is_between, go_on = asyncio.Event(), asyncio.Event()
        rollouts.begin(GroupInPlay(0, 9), [None], [1])
        asyncio.run_coroutine_threadsafe(is_between.wait(), rollouts._loop).result()
        rollouts.resume()
        rollouts._loop.call_soon_threadsafe(go_on.set)
        [group] = rollouts.take(1, step=0)

    for (context, written), weights, version in zip(group.episodes, (old, model), (0, 1), strict=True):
        ids = torch.tensor([[*context, *written.token_ids]])
        expected = weights(ids).logits[0].log_softmax(-1)[len(context) - 1 : -1]
        for place, (token, logprob) in enumerate(zip(written.token_ids, written.logprobs, strict=True)):
            assert logprob == pytest.approx(float(expected[place, token]), abs=1e-4)
        assert written.policy_version == version


def test_the_error_of_a_group_is_raised_where_it_is_waited_for():
    class Source:
        def refresh(self): ...

        async def play(self, tasks, seeds, *, name, gate):
            raise ZeroDivisionError("our bug")

    with AsynchronousRollouts(Source()) as rollouts:
        rollouts.begin(GroupInPlay(0, 9), [None], [1])
        with pytest.raises(ZeroDivisionError, match="our bug"):
            rollouts.take(1, step=0)


def test_what_is_still_played_ends_with_the_training():
    is_cancelled = []

    class Source:
        def refresh(self): ...

        async def play(self, tasks, seeds, *, name, gate):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                is_cancelled.append(name)
                raise

    with AsynchronousRollouts(Source()) as rollouts:
        rollouts.begin(GroupInPlay(0, 9), [None], [1])
        rollouts.resume()
    assert is_cancelled == ["group 0"]
