"""Tools of an episode out of a catalogue: retrieved where a task is drawn, or searched for."""

from dataclasses import replace

import pytest

from posttrain.config.params import load_params
from posttrain.retrieval.catalogue import Catalogue, CatalogueTool, of_world
from posttrain.retrieval.params import Ranking
from posttrain.retrieval.retriever import load_retriever, save_retriever
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.offers import (
    NO_TOOL,
    NOT_RETRIEVED,
    SEARCH,
    OfferingDomain,
    needed_tools,
    open_domain,
    question_of,
    tokens_of_tools,
)
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.runtime.exits import ConfigurationError
from posttrain.worlds.catalog import example_params, make_domain
from posttrain.worlds.protocol import CostlyDomain, ExpertDomain, RegeneratingDomain, ScoringDomain
from posttrain.worlds.scripts import ScriptedExpert, call, say
from tests.retrieval.catalogues import small_catalogue

WORDS = Ranking(method="words", max_tokens=64, exact_up_to=100)
TOY = make_domain(example_params("toy"))


KNOBS = load_params().agent.model_dump() | {"max_turns": 12}


def agent(**tools) -> AgentParams:
    return AgentParams.model_validate(KNOBS | {"tools": tools})


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    """The toy's tools, with words of its questions, and six others, ranked by words."""
    asked = {
        "find_": "red blue pen cup",
        "shelf": "price cost 价格 件",
        "sales": "went out 卖出",
        "returns": "came back 退回",
    }
    tools = []
    for one in of_world(TOY.tools, "toy"):
        words = next(text for part, text in asked.items() if part in one.name)
        function = {**one.schema["function"], "description": f"{one.description} {words}"}
        tools.append(CatalogueTool({"type": "function", "function": function}, "toy"))
    folder = tmp_path_factory.mktemp("retriever")
    save_retriever(folder, Catalogue(tuple(tools)).with_more(small_catalogue().tools), WORDS)
    return load_retriever(folder)


def play(domain, tasks, limits, policy=None):
    policy = policy or expert_policy(domain, is_flawless=True, reasoning_frac=0.0)
    return run_episodes(policy, tasks, domain=domain, limits=limits, seeds=[1] * len(tasks))


def scripted(*messages):
    def script():
        for message in messages:  # noqa: UP028 (each is sent the conversation, which a tuple cannot be)
            yield message

    return ScriptedPolicy(lambda _task, _seed: ScriptedExpert(script()))


def test_a_task_offers_the_nearest_tools_of_the_world_and_the_catalogue(retriever):
    limits = agent(type="retrieved", k=5)
    domain = OfferingDomain(TOY, retriever, limits)
    tasks, own = domain.tasks("dev", 40), TOY.tasks("dev", 40)
    assert [replace(task, tools=()) for task in tasks] == [replace(task, tools=()) for task in own]
    assert all(len(task.tools) == 5 for task in tasks)
    assert {name for task in tasks for name in task.tools} - TOY.tools.keys()
    assert len(domain.tools) == 8 + 6


def test_an_episode_fails_as_not_retrieved_just_where_a_needed_tool_was_not_offered(retriever):
    limits = agent(type="retrieved", k=5)
    domain = OfferingDomain(TOY, retriever, limits)
    tasks = domain.tasks("dev", 40)
    needed = needed_tools(TOY, TOY.tasks("dev", 40), limits)
    played = play(domain, tasks, limits)
    is_complete = [set(names) <= set(task.tools) for names, task in zip(needed, tasks, strict=True)]
    assert 0 < sum(is_complete) < 40
    assert [one.is_strict_success for one in played] == is_complete
    assert {one.outcome.failure for one in played} == {"", NOT_RETRIEVED}
    assert {one.messages[-1].content for one in played if not one.is_success} == {NO_TOOL}


def test_the_expert_searches_until_it_is_shown_what_it_needs_and_searches_cost_nothing(retriever):
    limits = agent(type="search", k=4)
    domain = OfferingDomain(TOY, retriever, limits)
    tasks = domain.tasks("dev", 40)
    assert {task.tools for task in tasks} == {(SEARCH,)}
    played, plain = play(domain, tasks, limits), play(TOY, TOY.tasks("dev", 40), limits)
    assert all(one.is_strict_success for one in played)
    made = [[call.name for message in one.messages for call in message.tool_calls] for one in played]
    assert all(names[0] == SEARCH for names in made if names)
    for one, other in zip(played, plain, strict=True):
        own = [
            score
            for score, turn in zip(one.outcome.turn_scores, one.turn_messages, strict=True)
            if not _is_search(turn)
        ]
        assert tuple(own) == other.outcome.turn_scores
        assert one.outcome.scores["efficiency"] == other.outcome.scores["efficiency"]


def _is_search(message):
    return any(call.name == SEARCH for call in message.tool_calls)


def test_a_tool_that_was_not_shown_cannot_be_called_until_a_search_shows_it(retriever):
    limits = agent(type="search", k=3)
    domain = OfferingDomain(TOY, retriever, limits)
    arguments = {"code": "999.X"}
    search = call(SEARCH, {"query": "units that buyers took, 卖出"})
    policy = scripted(call("get_sales", arguments), search, call("get_sales", arguments), say("ANSWER: 1 pcs"))
    [played] = play(domain, domain.tasks("dev", 1), limits, policy)
    before, found, after = [message.content for message in played.messages if message.role == "tool"]
    assert before == '{"error":"no tool \'get_sales\' is offered"}'
    assert '"name":"get_sales","description":"Units sold last week, north shop.' in found
    assert "no such code in the north shop" in after


def test_a_tool_of_the_catalogue_answers_that_it_is_not_here(retriever):
    limits = agent(type="retrieved", k=14)
    domain = OfferingDomain(TOY, retriever, limits)
    policy = scripted(call("area.circle", {"radius": "2"}), say("ANSWER: 1 pcs"))
    [played] = play(domain, domain.tasks("dev", 1), limits, policy)
    assert "does not answer here" in played.messages[3].content
    assert played.outcome.failure != NOT_RETRIEVED  # all were offered


def test_a_domain_keeps_its_optional_parts_and_a_new_question_the_offers_of_the_old(retriever):
    domain = OfferingDomain(TOY, retriever, agent(type="retrieved", k=5))
    assert all(isinstance(domain, part) for part in (ScoringDomain, ExpertDomain, RegeneratingDomain))
    assert not isinstance(domain, CostlyDomain)
    [task] = domain.tasks("sft", 1)
    new = domain.regenerate(task, seed=3)
    assert new.messages != task.messages
    assert (new.tools, new.labels, new.template) == (task.tools, task.labels, task.template)


class Letters:
    """A codec whose tokens are letters."""

    def encode_prompt(self, messages, tools):
        return list("".join([*(message.content for message in messages), *(one["function"]["name"] for one in tools)]))

    def encode_results(self, messages, calls=()):
        return list("".join(message.content for message in messages))


def test_tokens_of_tools_are_of_offers_and_of_what_searches_found(retriever):
    limits = agent(type="retrieved", k=2)
    domain = OfferingDomain(TOY, retriever, limits)
    tasks = domain.tasks("dev", 2)
    counted = tokens_of_tools(Letters(), domain, tasks, play(domain, tasks, limits))
    assert counted["tokens_per_episode"] == sum(len(name) for task in tasks for name in task.tools) / 2
    assert counted["tokens_of_all_tools"] == sum(map(len, domain.tools))
    limits = agent(type="search", k=2)
    domain = OfferingDomain(TOY, retriever, limits)
    tasks = domain.tasks("dev", 2)
    played = play(domain, tasks, limits, scripted(call(SEARCH, {"query": "price"}), say("ANSWER: 1 pcs")))
    found = sum(len(one.messages[3].content) for one in played) / 2
    assert tokens_of_tools(Letters(), domain, tasks, played)["tokens_per_episode"] == len(SEARCH) + found


def test_without_a_retriever_the_knob_is_refused_with_the_stage_that_makes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="dvc repro train_retriever"):
        open_domain(example_params("toy"), agent(type="retrieved", k=5))
    assert isinstance(open_domain(example_params("toy"), agent(type="offered")), type(TOY))
    assert question_of(TOY.tasks("dev", 1)[0])
