"""An agent's memory: which turns it reads, that training rows are what it read, and that a note
outlives the window in which it was written."""

import numpy as np
import pytest

from posttrain.models.codec import ChatCodec
from posttrain.models.tokenizer import train_tokenizer
from posttrain.rollout.episodes import demonstrate, run_episodes
from posttrain.rollout.memory import Window, window_rows, windows_of
from posttrain.rollout.params import NotesMemory, WindowMemory
from posttrain.rollout.policy import TokenPolicy
from posttrain.train.online.updates import Sample, batch_of, by_place, split_by_length
from posttrain.train.rejection_sampling.rounds import _rows
from posttrain.types import ScoredEpisode
from posttrain.worlds.catalog import example_params, make_domain
from tests.limits import limits_of
from tests.rollout.scripted_engine import ScriptedEngine

WORLD = example_params("errands").model_copy(update={"num_questions": 6})
DOMAIN = make_domain(WORLD)
TASKS = DOMAIN.tasks("sft", 8)
HOW = {"max_turns": 6, "keep_turns": 2}
WINDOW, NOTES = WindowMemory(type="window", **HOW), NotesMemory(type="notes", **HOW)
LONG = limits_of(30, 60, 2000)


def demonstrations():
    how = {"limits": LONG, "seed": 1, "is_flawless": True, "reasoning_frac": 0.0}
    return demonstrate(DOMAIN, TASKS, **how)


@pytest.fixture(scope="module")
def codec():
    shown = [row.trajectory.messages for row in demonstrations()]
    return ChatCodec(train_tokenizer(shown, tool_names=set(DOMAIN.tools), vocab_size=600, max_length=2000))


def played(codec, memory, *, max_context_tokens=2000):
    """The demonstrations as a model would have sampled them, with a memory."""
    rows = demonstrations()
    script = {
        seed: [codec.encode_assistant(one) for one in row.trajectory.messages if one.role == "assistant"]
        for seed, row in enumerate(rows)
    }
    limits = limits_of(30, 60, max_context_tokens, memory=memory)
    engine = ScriptedEngine(script)
    policy = TokenPolicy(engine, codec, temperature=1.0)
    return run_episodes(policy, TASKS, domain=DOMAIN, limits=limits, seeds=range(len(TASKS))), engine


def test_windows_begin_where_the_turns_are_too_many_and_keep_the_last_ones():
    memory = WindowMemory(type="window", max_turns=4, keep_turns=1)
    assert windows_of(3, memory) == [Window(0, 0)]
    assert windows_of(4, memory) == windows_of(6, memory) == [Window(0, 0), Window(3, 4)]
    assert windows_of(7, memory)[-1] == Window(6, 7)
    for num_turns in range(30):
        assert windows_of(num_turns, memory) == windows_of(num_turns + 1, memory)[: len(windows_of(num_turns, memory))]
    with pytest.raises(ValueError, match="no turn would ever be left out"):
        WindowMemory(type="window", max_turns=4, keep_turns=4)


@pytest.mark.parametrize("memory", [WINDOW, NOTES])
def test_a_demonstration_is_cut_into_the_rows_that_the_agent_reads_when_it_plays(codec, memory):
    episodes, engine = played(codec, memory)
    for row, episode in zip(demonstrations(), episodes, strict=True):
        assert episode.is_strict_success
        encoded = codec.encode_rows(one.conversation for one in window_rows(row, memory))
        assert len(encoded) == 1 + len(episode.window_starts) == 4  # 15 turns: 6, 4, 4, 1
        assert [token for one in encoded for token in one.input_ids] == list(episode.token_ids)
        assert [bit for one in encoded for bit in one.mask] == list(episode.mask)
        assert [(one.input_ids, one.mask) for one in _rows(episode, is_accepted=True)] == [
            (one.input_ids, one.mask) for one in encoded
        ]
    longest = max(len(one.token_ids) for one in engine.requests)
    whole, _ = played(codec, NotesMemory(type="notes", max_turns=40, keep_turns=1))
    assert longest < 0.6 * max(len(one.token_ids) for one in whole)


def test_a_note_is_read_in_every_later_window_and_what_was_left_out_is_not(codec):
    _, engine = played(codec, NOTES)
    texts = [codec.decode(one.token_ids) for one in engine.requests if one.seed == 0]
    fact = f"member {TASKS[0].goal.partition('member')[2][4:8]}"
    assert [fact in text for text in texts] == [False, False, *[True] * 13]
    _, engine = played(codec, WINDOW)
    texts = [codec.decode(one.token_ids) for one in engine.requests if one.seed == 0]
    assert [fact in text for text in texts] == [False, False, *[True] * 4, *[False] * 9]


def test_an_episode_that_outgrows_its_context_ends_without_a_memory_and_goes_on_with_one(codec):
    limit = 180
    assert {str(one.stop_reason) for one in played(codec, {"type": "none"}, max_context_tokens=limit)[0]} == {
        "token_limit"
    }
    assert all(one.is_success for one in played(codec, NOTES, max_context_tokens=limit)[0])


def test_a_step_learns_from_windows_as_from_rows_of_their_own(codec):
    (episode, other, *_), _ = played(codec, NOTES)
    samples = [Sample(ScoredEpisode(one), np.arange(1.0, 1 + sum(one.mask))) for one in (episode, other)]
    batch = batch_of(samples, pad_id=0)
    assert batch.places_N.tolist() == [0] * 4 + [1] * 4
    assert batch.windows_N.tolist() == [0, 1, 2, 3] * 2
    assert batch.lengths_N.tolist() == [sum(episode.mask)] * 4 + [sum(other.mask)] * 4
    for row, one in zip(_rows(episode, is_accepted=True), batch.input_ids_N_T, strict=False):
        assert one[: len(row.input_ids)].tolist() == row.input_ids
    parts = split_by_length(batch, 3)  # rows stand by length, and come back in their order
    values = by_place(parts, [part.advantages_N_T for part in parts])
    assert {place: found.tolist() for place, found in values.items()} == {
        place: one.advantages_T.tolist() for place, one in enumerate(samples)
    }
