"""Real LangGraph graphs, against a policy that recites."""

import asyncio

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from posttrain.rollout.agents.langgraph import from_langchain, langgraph_loop, to_langchain
from posttrain.rollout.engines.protocol import EngineFailed
from posttrain.types import Message, StopReason, ToolCall
from tests.rollout.agents.program_episodes import LINES, Stateless, check_same_as_tools, play_loop, scripted
from tests.rollout.lock_world import arguments_of, call, lock_task, say


def graph_of(ask, act):
    """The graph of the prebuilt agent: ask, act, ask again."""
    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", act)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    return graph


def react(model, tools, *, system=None, checkpointer=None):
    """The prebuilt agent's graph, written out."""
    bound = model.bind_tools(tools)

    async def ask(state: MessagesState):
        opening = [SystemMessage(system)] if system else []
        return {"messages": [await bound.ainvoke([*opening, *state["messages"]])]}

    return graph_of(ask, ToolNode(tools)).compile(checkpointer=checkpointer)


def react_in_threads(model, tools):
    bound = model.bind_tools(tools)
    by_name = {tool.name: tool for tool in tools}

    def ask(state: MessagesState):
        return {"messages": [bound.invoke(state["messages"])]}

    def act(state: MessagesState):
        return {"messages": [by_name[made["name"]].invoke(made) for made in state["messages"][-1].tool_calls]}

    return graph_of(ask, act).compile()


def play(make_graph, *lines, **options):
    [trajectory] = play_loop(scripted(*lines), langgraph_loop(make_graph), **options)
    return trajectory


def with_checkpoints(model, tools):
    return react(model, tools, checkpointer=InMemorySaver())


@pytest.mark.parametrize("make_graph", [react, react_in_threads, with_checkpoints])
def test_a_graph_makes_the_record_that_the_loop_of_tools_makes(make_graph):
    check_same_as_tools(play(make_graph, *LINES))


def test_a_graph_with_a_prompt_of_its_own_is_one_conversation_also_after_the_user_replied():
    trajectory = play(lambda model, tools: react(model, tools, system="my prompt"), *LINES)
    assert [message.content for message in trajectory.messages[:3]] == ["my prompt", "locks", "open"]
    assert (trajectory.stop_reason, trajectory.num_forks, len(trajectory.turns)) == (StopReason.DONE, 0, 4)


def test_a_graph_that_never_stops_ends_at_its_limit_of_turns_or_of_steps():
    always = [call("try_code", arguments_of("1"))] * 4
    assert play(react, *always).stop_reason == StopReason.TURN_LIMIT

    def impatient(model, tools):
        return react(model, tools).with_config(recursion_limit=3)

    trajectory = play(impatient, *always)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.TURN_LIMIT, 2)


def test_a_call_that_is_no_json_stays_as_it_was_written():
    broken = Message(
        "assistant", "", None, (ToolCall("call_1", "try_code", '{"code":'), ToolCall("call_2", "try_code", "{}"))
    )
    assert from_langchain(to_langchain(broken)) == broken
    trajectory = play(react, call("try_code", '{"code":'))
    assert trajectory.messages[2].tool_calls == (ToolCall("call_1", "try_code", '{"code":'),)
    assert trajectory.stop_reason == StopReason.DONE, "the prebuilt condition sees no call in it"


def test_a_broken_tool_and_a_lost_engine_are_not_hidden_by_a_graph_that_handles_errors():
    def forgiving(model, tools):
        async def ask(state: MessagesState):
            try:
                return {"messages": [await model.bind_tools(tools).ainvoke(state["messages"])]}
            except Exception as error:
                return {"messages": [AIMessage(f"sorry: {error}")]}

        return graph_of(ask, ToolNode(tools, handle_tool_errors=True)).compile()

    with pytest.raises(Exception, match=r"tool_failed: jam\({}\) raised ZeroDivisionError"):
        play(forgiving, call("jam", "{}"), say("done"), task=lock_task())

    class Gone(Stateless):
        async def reply(self, episode):
            raise EngineFailed("no server answers")

    with pytest.raises(Exception, match="engine_lost: no server answers"):
        play_loop(Gone(), langgraph_loop(forgiving))


def test_what_no_rollout_can_give_is_refused():
    def forced(model, tools):
        return react(
            type("Forced", (), {"bind_tools": lambda self, tools: model.bind_tools(tools, tool_choice="any")})(), tools
        )

    with pytest.raises(Exception, match="tool_choice is 'any'"):
        play(forced)
    with pytest.raises(ValueError, match="no text"):
        from_langchain(HumanMessage([{"type": "image_url", "image_url": "x"}]))


def test_nodes_that_ask_at_once_are_answered_one_after_the_other():
    def fan_out(model, tools):
        async def ask(state: MessagesState):
            both = await asyncio.gather(*[model.ainvoke([HumanMessage(word)]) for word in ("left", "right")])
            return {"messages": [both[-1]]}

        graph = StateGraph(MessagesState)
        graph.add_node("ask", ask)
        graph.add_edge(START, "ask")
        return graph.compile()

    trajectory = play(fan_out, say("one"), say("two"))
    assert (trajectory.messages[-1].content, trajectory.num_forks, len(trajectory.turns)) == ("two", 1, 1)
