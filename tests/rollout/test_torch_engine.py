import asyncio
import contextlib
import random
import weakref

import pytest
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from posttrain.rollout.engines.fused_weights import fuse
from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.rollout.engines.slotted_decoder import SlottedDecoder, num_slots_within
from posttrain.rollout.engines.torch_engine import TorchEngine, sample
from posttrain.runtime.exits import ConfigurationError
from tests.rollout.tiny_models import MODELS, SIZES, reference_logprobs, tiny_model

STOP = 7


async def play(engine, name, prompt, *, num_turns, temperature, seed, max_new_tokens=9, pause=None):
    """A toy episode: what comes from outside between two messages is drawn from the seed. Returns
    all tokens, and where each message stands."""
    outside = random.Random(seed)
    token_ids, messages = list(prompt), []
    for _ in range(num_turns):
        request = GenerateRequest(name, token_ids, max_new_tokens, temperature, seed, frozenset({STOP}))
        generation = await engine.generate(request)
        messages.append((len(token_ids), generation))
        token_ids = [
            *token_ids,
            *generation.token_ids,
            *[outside.randrange(64) for _ in range(outside.randrange(1, 12))],
        ]
        if pause:
            await pause()
    engine.release(name)
    return token_ids, messages


def play_all(engine, plays):
    async def gather():
        return await asyncio.gather(*[play(engine, **one) for one in plays])

    return asyncio.run(gather())


def ragged_plays(count, *, temperature, group_size=3, prompt_sizes=(1, 40)):
    """Groups of equal prompts of uneven lengths, episodes of one to four turns."""
    draw = random.Random(5)
    prompts = [
        [draw.randrange(64) for _ in range(draw.randrange(*prompt_sizes))] for _ in range(-(-count // group_size))
    ]
    return [
        {
            "name": f"e{index}",
            "prompt": prompts[index // group_size],
            "num_turns": 1 + index % 4,
            "temperature": temperature,
            "seed": 100 + index,
        }
        for index in range(count)
    ]


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_tokens_and_logprobs_are_those_of_a_plain_forward_pass(architecture, temperature):
    model = tiny_model(architecture)
    engine = TorchEngine(model, num_slots=5, max_context_tokens=128)
    num_checked = 0
    for token_ids, messages in play_all(engine, ragged_plays(24, temperature=temperature)):
        expected = reference_logprobs(model, token_ids, temperature=temperature or 1.0)
        for start, generation in messages:
            rows, token_N = expected[start - 1 : start - 1 + len(generation.token_ids)], generation.token_ids
            chosen = rows.gather(1, torch.tensor(token_N)[:, None]).squeeze(1)
            assert torch.allclose(torch.tensor(generation.logprobs), chosen, rtol=0, atol=1e-4)
            assert temperature or rows.argmax(-1).tolist() == list(token_N)
            num_checked += len(token_N)
    assert num_checked > 200


def tokens_of(results):
    return [[list(generation.token_ids) for _, generation in messages] for _, messages in results]


def test_an_episode_says_the_same_whoever_plays_beside_it():
    model = tiny_model("qwen3")
    plays = ragged_plays(20, temperature=1.0)
    together = play_all(TorchEngine(model, num_slots=20, max_context_tokens=128), plays)
    through_three_slots = play_all(TorchEngine(model, num_slots=3, max_context_tokens=128), plays)
    alone = [play_all(TorchEngine(model, num_slots=1, max_context_tokens=128), [one])[0] for one in plays]
    assert tokens_of(together) == tokens_of(through_three_slots) == tokens_of(alone)
    assert len({str(tokens) for tokens in tokens_of(together)}) == 20


def test_two_runs_agree_to_the_bit():
    model = tiny_model("qwen3")
    first, second = (
        play_all(TorchEngine(model, num_slots=6, max_context_tokens=128), ragged_plays(20, temperature=1.0))
        for _ in range(2)
    )
    assert first == second


def test_episodes_that_pause_between_turns_keep_their_place_and_lose_nothing():
    model = tiny_model("qwen3")

    async def slow_tool():
        for _ in range(7):
            await asyncio.sleep(0)

    plays = ragged_plays(16, temperature=1.0)
    at_once = play_all(TorchEngine(model, num_slots=16, max_context_tokens=128), plays)
    paused = play_all(
        TorchEngine(model, num_slots=4, max_context_tokens=128),
        [{**one, "pause": slow_tool if index % 3 else None} for index, one in enumerate(plays)],
    )
    assert tokens_of(at_once) == tokens_of(paused)


def request(name="e", token_ids=(1, 2, 3), max_new_tokens=4, temperature=0.0, seed=0, stop_ids=frozenset({STOP})):
    return GenerateRequest(name, list(token_ids), max_new_tokens, temperature, seed, stop_ids)


def test_a_message_ends_with_its_stop_token_or_at_its_limit():
    model = tiny_model("qwen3")
    engine = TorchEngine(model, num_slots=2, max_context_tokens=64)
    cut = asyncio.run(engine.generate(request("cut", stop_ids=frozenset())))
    assert (len(cut.token_ids), cut.finish) == (4, "length")
    third = cut.token_ids[2]
    stopped = asyncio.run(engine.generate(request("stopped", stop_ids=frozenset({third}))))
    assert stopped.finish == "stop"
    assert list(stopped.token_ids) == list(cut.token_ids)[: list(cut.token_ids).index(third) + 1]


def test_a_context_that_was_edited_is_read_again_from_the_edit():
    model = tiny_model("qwen3")
    engine = TorchEngine(model, num_slots=2, max_context_tokens=64)
    asyncio.run(engine.generate(request("edited", range(1, 21))))
    context = [*range(1, 11), 50, *range(12, 21)]
    again = asyncio.run(engine.generate(request("edited", context)))
    fresh = asyncio.run(engine.generate(request("fresh", context)))
    assert again.token_ids == fresh.token_ids
    assert again.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)


def test_new_weights_are_used_from_the_next_refresh_and_every_context_is_read_again():
    model = tiny_model("qwen3")
    engine = TorchEngine(model, num_slots=2, max_context_tokens=64)
    before = asyncio.run(engine.generate(request("kept")))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    assert asyncio.run(engine.generate(request("not refreshed"))).logprobs == pytest.approx(before.logprobs, abs=1e-5)
    engine.refresh_weights()
    assert engine.policy_version == 1
    context = [1, 2, 3, *before.token_ids, 9]
    after = asyncio.run(engine.generate(request("kept", context)))
    expected = reference_logprobs(model, [*context, *after.token_ids])[len(context) - 1 : -1]
    assert after.logprobs == pytest.approx(expected.amax(-1).tolist(), abs=1e-4)


def test_weights_are_not_replaced_in_the_middle_of_a_message():
    engine = TorchEngine(tiny_model("qwen3"), num_slots=1, max_context_tokens=64)

    async def scenario():
        writing = asyncio.create_task(engine.generate(request()))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="1 messages are being written"):
            engine.refresh_weights()
        await writing

    asyncio.run(scenario())


def test_a_sleeping_engine_holds_neither_weights_nor_cache_and_goes_on_with_new_ones():
    engine = TorchEngine(tiny_model("qwen3"), num_slots=2, max_context_tokens=64)
    before = asyncio.run(engine.generate(request("one")))
    held = [weakref.ref(engine._decoder.cache), weakref.ref(engine._decoder._weights.embedding)]
    engine.sleep()
    assert [one() for one in held] == [None, None]
    with pytest.raises(RuntimeError, match="the engine sleeps"):
        asyncio.run(engine.generate(request("one")))
    engine.release("one")
    engine.refresh_weights()
    again = asyncio.run(engine.generate(request("two")))
    assert (again.token_ids, again.logprobs) == (before.token_ids, before.logprobs)


def test_an_engine_that_takes_the_weights_leaves_none_and_plays_as_with_a_copy():
    model, plays = tiny_model("qwen3"), ragged_plays(4, temperature=1.0, group_size=1)
    size = {"num_slots": 4, "max_context_tokens": 128}
    copied = play_all(TorchEngine(model, **size), plays)
    engine = TorchEngine(model, **size, takes_weights=True)
    assert sum(weight.numel() for weight in model.parameters()) == 0
    assert play_all(engine, plays) == copied
    with pytest.raises(RuntimeError, match="no others"):
        engine.refresh_weights()


def test_as_many_slots_as_a_third_of_the_free_memory_holds():
    weights = fuse(tiny_model("qwen3"))
    cache = SlottedDecoder(weights, num_slots=5, max_context_tokens=40).cache
    for free, num_slots in ((3 * cache.nbytes, 5), (3 * cache.nbytes - 1, 4), (0, 1)):
        assert num_slots_within(free, weights, 40) == num_slots


@pytest.mark.parametrize("num_slots", [1, 2, 6])
def test_a_message_given_up_can_be_asked_for_again_and_nobody_else_notices(num_slots):
    """Two of six episodes give up every message once, waiting for a slot or writing."""
    model = tiny_model("qwen3")
    plays = ragged_plays(6, temperature=1.0, group_size=1)
    undisturbed = play_all(TorchEngine(model, num_slots=6, max_context_tokens=128), plays)

    class Impatient(TorchEngine):
        async def generate(self, request):
            if request.episode_id in ("e1", "e3"):
                first = asyncio.create_task(super().generate(request))
                for _ in range(12):
                    await asyncio.sleep(0)
                first.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    return await first
            return await super().generate(request)

    engine = Impatient(model, num_slots=num_slots, max_context_tokens=128)
    assert tokens_of(play_all(engine, plays)) == tokens_of(undisturbed)
    assert not any([engine._ready, engine._waiting, engine._evicted, engine._futures, engine._table.num_used])


def test_a_message_given_up_is_written_no_further():
    engine = TorchEngine(tiny_model("qwen3"), num_slots=2, max_context_tokens=64)

    async def scenario():
        writing = asyncio.create_task(engine.generate(request("given up", max_new_tokens=50, stop_ids=frozenset())))
        await asyncio.sleep(0.01)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        length = int(engine._table.length_S[0])
        await engine.generate(request("other", max_new_tokens=20, stop_ids=frozenset()))
        assert engine._table.length_S[0] == length
        engine.refresh_weights()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"token_ids": []}, "0 tokens of context"),
        ({"max_new_tokens": 0}, " 0 to write"),
        ({"stop_ids": frozenset(range(9))}, "9 stop tokens"),
        ({"token_ids": [1] * 61}, "61 tokens of context, 4 to write .* 64 together"),
    ],
)
def test_a_request_that_no_slot_can_hold_is_refused(bad, message):
    engine = TorchEngine(tiny_model("qwen3"), num_slots=1, max_context_tokens=64)
    with pytest.raises(ValueError, match=message):
        asyncio.run(engine.generate(request(**bad)))


def test_a_failure_of_the_model_reaches_everyone_who_waits():
    engine = TorchEngine(tiny_model("qwen3"), num_slots=1, max_context_tokens=64)

    async def scenario():
        return await asyncio.gather(
            engine.generate(request("a", [999])), engine.generate(request("b")), return_exceptions=True
        )

    assert [type(error) for error in asyncio.run(scenario())] == [IndexError, IndexError]


def test_an_unsupported_architecture_is_a_wrong_configuration():
    gemma = GemmaForCausalLM(GemmaConfig(**SIZES, head_dim=16))
    with pytest.raises(ConfigurationError, match="model type 'gemma'"):
        TorchEngine(gemma, num_slots=1, max_context_tokens=8)
    qwen = Qwen3ForCausalLM(Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1))
    for windowed in (qwen, MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8))):
        with pytest.raises(ConfigurationError, match=r"sliding window\. vLLM can"):
            TorchEngine(windowed, num_slots=1, max_context_tokens=8)


def test_a_lora_adapter_is_part_of_the_weights():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        tiny_model("qwen2"),
        peft.LoraConfig(
            r=2, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj", "gate_proj"], lora_dropout=0.5
        ),
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(3))
    engine = TorchEngine(model, num_slots=1, max_context_tokens=64)
    with_adapter = asyncio.run(engine.generate(request()))
    expected = reference_logprobs(model.eval(), [1, 2, 3, *with_adapter.token_ids])[2:-1]
    assert with_adapter.logprobs == pytest.approx(expected.amax(-1).tolist(), abs=1e-4)
    with model.disable_adapter():
        engine.refresh_weights()
        without = asyncio.run(engine.generate(request("base")))
    assert without.logprobs != pytest.approx(with_adapter.logprobs, abs=1e-2)


def test_a_long_context_is_read_in_pieces():
    model = tiny_model("qwen3")
    engine = TorchEngine(model, num_slots=3, max_context_tokens=2600)
    draw = random.Random(1)
    prompts = [[draw.randrange(64) for _ in range(size)] for size in (2500, 700, 1030)]

    async def all_three():
        return await asyncio.gather(
            *[engine.generate(request(str(len(prompt)), prompt, max_new_tokens=3)) for prompt in prompts]
        )

    for prompt, generation in zip(prompts, asyncio.run(all_three()), strict=True):
        expected = reference_logprobs(model, [*prompt, *generation.token_ids])[len(prompt) - 1 : -1]
        assert list(generation.token_ids) == expected.argmax(-1).tolist()
        assert generation.logprobs == pytest.approx(expected.amax(-1).tolist(), abs=1e-4)


def test_a_bfloat16_model_stays_as_near_to_float32_as_transformers_does():
    exact, rounded = tiny_model("qwen3"), tiny_model("qwen3").to(torch.bfloat16)
    engine = TorchEngine(rounded, num_slots=8, max_context_tokens=128)
    ours, theirs = [], []
    for token_ids, messages in play_all(engine, ragged_plays(16, temperature=1.0)):
        truth, theirs_T_V = reference_logprobs(exact, token_ids), reference_logprobs(rounded, token_ids).float()
        for start, generation in messages:
            for offset, (token, logprob) in enumerate(zip(generation.token_ids, generation.logprobs, strict=True)):
                ours.append(abs(logprob - truth[start - 1 + offset, token]))
                theirs.append(abs(theirs_T_V[start - 1 + offset, token] - truth[start - 1 + offset, token]))
    assert sum(ours) < 1.2 * sum(theirs)


QUARTERS = torch.tensor([0.25, 0.5, 0.25]).log()


def test_a_draw_picks_the_token_whose_share_of_the_line_it_falls_into():
    draws = torch.tensor([0.0, 0.2, 0.25, 0.7, 0.75, 0.9])
    tokens, logprobs = sample(QUARTERS.expand(6, 3), torch.ones(6), draws)
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.allclose(logprobs.exp(), torch.tensor([0.25, 0.25, 0.5, 0.5, 0.25, 0.25]))


def test_temperature_sharpens_the_distribution_that_is_drawn_from_and_reported():
    # at temperature 1/2 probabilities are squared: 1/16, 4/16, 1/16, that is 1/6, 4/6, 1/6
    tokens, logprobs = sample(QUARTERS.expand(2, 3), torch.full((2,), 0.5), torch.tensor([0.16, 0.17]))
    assert tokens.tolist() == [0, 1]
    assert torch.allclose(logprobs.exp(), torch.tensor([1 / 6, 4 / 6]))


def test_temperature_zero_takes_the_most_probable_and_reports_it_at_temperature_one():
    tokens, logprobs = sample(QUARTERS.expand(2, 3), torch.tensor([0.0, 1.0]), torch.tensor([0.9, 0.9]))
    assert tokens.tolist() == [1, 2]
    assert torch.allclose(logprobs.exp(), torch.tensor([0.5, 0.25]))
    assert sample(QUARTERS[None], torch.zeros(1), torch.zeros(1))[0].tolist() == [1]


def test_a_token_of_probability_zero_is_never_drawn_not_even_by_the_largest_draw():
    largest = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    thirds = torch.tensor([float("-inf"), 0.0, 0.0, 0.0, float("-inf")])
    tokens, _ = sample(thirds.expand(2, 5), torch.ones(2), torch.stack([torch.tensor(0.0), largest]))
    assert tokens.tolist() == [1, 3]


def test_logits_that_are_no_numbers_have_a_log_probability_that_is_none():
    """And no index beyond the vocabulary, which on a GPU would be the end of the process."""
    broken, temperatures = torch.full((2, 3), float("nan")), torch.tensor([1.0, 0.0])
    tokens, logprobs = sample(broken, temperatures, torch.tensor([0.3, 0.3]))
    assert bool(((tokens >= 0) & (tokens < 3)).all())
    assert bool(logprobs.isnan().all())
