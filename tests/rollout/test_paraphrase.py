"""Paraphrases by a scripted endpoint: what changes the goal is refused, and nothing is asked
twice."""

import json

import pytest

from posttrain.data.params import ParaphraseParams
from posttrain.rollout.paraphrase import _kept, paraphrased
from posttrain.types import Message, Task
from tests.rollout.openai_endpoint import Endpoint, answer_of

PARAMS = ParaphraseParams(model="m", frac=1.0, temperature=1.0)
TASKS = [
    Task(f"t{place}", "sft", (Message("user", text),), ())
    for place, text in enumerate(
        ["Price of A-share Foxton?", "P/E of 600519.SH?", "600519.SH的市盈率?", "High of 0700.HK?"]
    )
]
OTHER_WORDS = {
    "Price of A-share Foxton?": "Could you tell me what Foxton, the A-share, costs?",
    "P/E of 600519.SH?": "P/E of 600520.SH, please",  # another code
    "600519.SH的市盈率?": "600519.SH市盈率多少",
    "High of 0700.HK?": "Low of 0700.HK?",  # the same words but one, which the comparison finds
}
TASKS = [Task(f"t{place}", "sft", (Message("user", text),), ()) for place, text in enumerate(OTHER_WORDS)]


def scripted(body):
    system, user = (one["content"] for one in body["messages"])
    if "reword" in system:
        return answer_of(json.dumps({"text": OTHER_WORDS[json.loads(user)]}))
    return answer_of(json.dumps({"same": "Low" not in user}))


@pytest.fixture
def endpoint(monkeypatch):
    found = Endpoint(lambda _, body: scripted(body))
    monkeypatch.setenv("OPENAI_BASE_URL", found.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    yield found
    found.stop()


def test_a_paraphrase_is_used_where_the_goal_is_unchanged_and_asked_for_once(endpoint, tmp_path):
    found, num_refused = paraphrased(TASKS, PARAMS, seed=1, folder=tmp_path)
    assert [one.messages[-1].content for one in found] == [
        "Could you tell me what Foxton, the A-share, costs?",
        "P/E of 600519.SH?",
        "600519.SH市盈率多少",
        "High of 0700.HK?",
    ]
    assert num_refused == 2
    assert [one.task_id == old.task_id for one, old in zip(found, TASKS, strict=True)] == [False, True, False, True]
    num_asked = len(endpoint.bodies)
    assert num_asked == 4 + 3 + 2  # rewordings, comparisons of those that keep the codes, and of those held the same
    assert paraphrased(TASKS, PARAMS, seed=1, folder=tmp_path) == (found, num_refused)
    assert len(endpoint.bodies) == num_asked


def test_names_codes_and_numbers_have_to_stay():
    assert _kept("Price of A-share Foxton on 2026-01-05?") == ["2026-01-05", "A-share", "Foxton"]
    assert _kept("Is 12.30 HKD right for MA5?") == ["12.30", "HKD", "MA5"]
