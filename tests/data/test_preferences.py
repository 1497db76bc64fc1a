"""Preferences in the shapes that other people's files have."""

import json
from typing import Any

import pytest

from posttrain.data.importing.preferences import ImportedPreferences, import_preferences
from posttrain.data.preferences import Said, read_pairs, read_verdicts, write_pairs, write_verdicts
from posttrain.data.schemas import untrained_messages
from posttrain.runtime.exits import DataError
from tests.data.hostile import hostile_records, line

ASKED = {"role": "user", "content": "Is it warm in Oslo?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
CALLED = [
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "-4"},
    {"role": "assistant", "content": "No, it is -4."},
]
GUESSED = [{"role": "assistant", "content": "Surely."}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
BEFORE = [ASKED, {"role": "assistant", "content": "Shall I look?"}, {"role": "user", "content": "Yes."}]
PAIRS: dict[str, dict[str, Any]] = {
    "trl": {"prompt": [ASKED], "chosen": CALLED, "rejected": GUESSED, "tools": [TOOL]},
    "trl, the prompt within": {"chosen": [ASKED, *CALLED], "rejected": [ASKED, *GUESSED], "tools": [TOOL]},
    "trl, of text": {"prompt": "Is it warm in Oslo?", "chosen": "No.", "rejected": "Surely."},
    "openai": {
        "input": {"messages": [ASKED], "tools": [TOOL], "parallel_tool_calls": True},
        "preferred_output": CALLED,
        "non_preferred_output": GUESSED,
    },
    "anthropic": {
        "chosen": "\n\nHuman: Is it warm in Oslo?\n\nAssistant: No.",
        "rejected": "\n\nHuman: Is it warm in Oslo?\n\nAssistant: Surely.",
    },
    "llama_factory": {
        "conversations": [{"from": "human", "value": "Is it warm in Oslo?"}],
        "chosen": {"from": "gpt", "value": "No."},
        "rejected": {"from": "gpt", "value": "Surely."},
    },
    "ms_swift": {"messages": [ASKED, {"role": "assistant", "content": "No."}], "rejected_response": "Surely."},
    "ultrafeedback": {
        "prompt": "Is it warm in Oslo?",
        "chosen": [ASKED, {"role": "assistant", "content": "No."}],
        "rejected": [ASKED, *GUESSED],
        "score_chosen": 8.0,
        "score_rejected": 3.5,
    },
    "arena": {
        "conversation_a": [ASKED, *GUESSED],
        "conversation_b": [ASKED, {"role": "assistant", "content": "No."}],
        "winner": "model_b",
    },
    "safe_rlhf": {
        "prompt": "Is it warm in Oslo?",
        "response_0": "No.",
        "response_1": "Surely.",
        "better_response_id": 0,
    },
}
SCORED = {
    "instruction": "Is it warm in Oslo?",
    "completions": [{"response": "Surely.", "overall_score": 2}, {"response": "No.", "overall_score": 9}],
}
RANKED = {"prompt": "Is it warm in Oslo?", "responses": ["Surely.", "No."], "ranks": [2, 1]}
THUMB = {
    "prompt": [ASKED],
    "completion": CALLED,
    "label": True,
    "tools": [TOOL],
    "annotator": "ann",
    "created_at": "2026-11-01",
}
STEPS = {"prompt": "Is it warm in Oslo?", "completions": ["I look it up.", "Surely."], "labels": [True, False]}
MARKED = {"messages": [ASKED, {**CALLED[0], "rating": 5}, CALLED[1], {**CALLED[2], "rating": 2}], "tools": [TOOL]}


@pytest.fixture
def read(tmp_path):
    def read(*records: Any) -> ImportedPreferences:
        file = tmp_path / "ours.jsonl"
        file.write_bytes(b"\n".join(map(line, records)))
        return import_preferences([file])

    return read


def last(row) -> str:
    return row.trajectory.messages[-1].content


@pytest.mark.parametrize("name", PAIRS)
def test_two_sides_in_the_shapes_that_others_write(read, name):
    found = read(PAIRS[name])
    assert (found.bad, found.verdicts, found.scored) == ([], [], [])
    [pair] = found.pairs
    assert last(pair.chosen).startswith("No")
    assert last(pair.rejected) == "Surely."
    for row in (pair.chosen, pair.rejected):
        assert [one.role for one in row.trajectory.messages][:2] == ["user", "assistant"]
        assert untrained_messages(row.trajectory) == frozenset()
    assert pair.chosen.trajectory.task_id == pair.rejected.trajectory.task_id
    assert pair.chosen.tools == pair.rejected.tools


def test_what_both_sides_begin_with_is_not_trained_on_and_the_first_question_is_the_task(read):
    found = read(
        {"chosen": [*BEFORE, *CALLED], "rejected": [*BEFORE, *GUESSED]},
        {"prompt": BEFORE, "completion": CALLED, "label": 0},
    )
    [pair], [thumb] = found.pairs, found.verdicts
    assert [untrained_messages(row.trajectory) for row in (pair.chosen, pair.rejected, thumb.row)] == [{1}, {1}, {1}]
    assert (
        pair.chosen.trajectory.task_id
        == thumb.row.trajectory.task_id
        == read(PAIRS["trl"]).pairs[0].chosen.trajectory.task_id
    )


def test_scores_and_ranks_are_compared_within_a_record_or_a_persons_own(read):
    for record in (SCORED, RANKED):
        scores = {last(one.row): one.score for one in read(record).scored}
        assert scores["No."] > scores["Surely."]
    single = {"prompt": "Is it warm in Oslo?", "response": "No.", "rating": 5}
    groups = [one.group for one in read(*({**single, "who": who} for who in ("ann", "bob", "ann")), single).scored]
    assert groups[0] == groups[2]
    assert len({*groups}) == 3


def test_a_thumb_keeps_who_said_it_and_when(read):
    [thumb] = read(THUMB).verdicts
    assert (thumb.is_desirable, thumb.said) == (True, Said("import", "ann", "2026-11-01"))
    assert last(thumb.row) == "No, it is -4."
    messages = {"messages": [ASKED, *GUESSED]}
    for value, is_up in {"thumbs_down": False, "like": True, 1: True, -1: False}.items():
        assert read({**messages, "feedback": value}).verdicts[0].is_desirable is is_up


def test_marks_of_turns(read):
    [steps] = read(STEPS).verdicts
    assert (steps.is_desirable, steps.turn_marks) == (None, (1.0, 0.0))
    [marked] = read(MARKED).verdicts
    assert marked.turn_marks == (1.0, 0.25)
    del MARKED["messages"][1]["rating"]
    assert read(MARKED).verdicts[0].turn_marks == (None, 0.25)


def test_a_tie_is_counted_and_makes_nothing(read):
    found = read({**PAIRS["arena"], "winner": "tie"})
    assert (found.num_ties, found.pairs, found.bad) == (1, [], [])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({**PAIRS["trl"], "rejected": CALLED}, "beginning of another"),
        ({**PAIRS["trl"], "rejected": []}, "is empty"),
        ({**PAIRS["trl"], "rejected": 3}, "neither text nor a list"),
        (
            {"chosen": [ASKED, *CALLED], "rejected": [{**ASKED, "content": "And Rome?"}, *GUESSED]},
            "different questions",
        ),
        ({**PAIRS["arena"], "winner": "model_c"}, "neither of a and b"),
        ({**RANKED, "ranks": [1]}, "no score each"),
        ({**RANKED, "responses": ["No."], "ranks": [1]}, "1 answers"),
        ({**THUMB, "label": "perhaps"}, "neither for nor against"),
        ({**STEPS, "labels": [True]}, "1 marks for 2 turns"),
        ({"messages": [ASKED, {**GUESSED[0], "rating": 9}]}, "rating"),
        ({"messages": [ASKED, *GUESSED]}, "does not say what was preferred"),
        ({**PAIRS["trl"], "images": ["a.png"]}, "images"),
        ({"prompt": "Why?", "label": True}, "last message is the user's"),
        ([1], "not an object"),
    ],
)
def test_what_says_nothing_is_told_with_its_reason(read, record, reason):
    found = read(PAIRS["trl"], record)
    assert len(found.pairs) == 1
    assert [(one.number, reason in one.reason) for one in found.bad] == [(2, True)], found.bad


@pytest.mark.parametrize("seed", range(4))
def test_hostile_records_end_in_a_preference_or_a_reason(read, seed, tmp_path):
    samples = [*PAIRS.values(), SCORED, RANKED, THUMB, STEPS, MARKED]
    records = list(hostile_records(200, seed, samples=samples))
    found = read(*records)
    assert found.num_records == len(records)
    assert min(map(len, (found.pairs, found.verdicts, found.scored, found.bad))) > 3
    assert all(one.reason and "Traceback" not in one.reason for one in found.bad)
    write_pairs(tmp_path / "pairs.parquet", found.pairs)
    write_verdicts(tmp_path / "verdicts.parquet", found.verdicts)
    assert len(read_pairs(tmp_path / "pairs.parquet")) == len(found.pairs)
    assert [one.turn_marks for one in read_verdicts(tmp_path / "verdicts.parquet")] == [
        one.turn_marks for one in found.verdicts
    ]


def test_the_files_give_back_what_they_were_given(read, tmp_path):
    found = read(PAIRS["openai"], THUMB, STEPS)
    write_pairs(tmp_path / "pairs.parquet", found.pairs)
    write_verdicts(tmp_path / "verdicts.parquet", found.verdicts)
    assert read_pairs(tmp_path / "pairs.parquet") == found.pairs
    assert read_verdicts(tmp_path / "verdicts.parquet") == found.verdicts


def test_an_empty_file_and_none_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    for name in ("empty.jsonl", "none.jsonl"):
        with pytest.raises(DataError):
            import_preferences([tmp_path / name])
    (tmp_path / "a.json").write_text(json.dumps([PAIRS["trl"], RANKED]))
    assert import_preferences([tmp_path / "a.json"]).num_records == 2
