"""Runs a LangGraph agent as an agent loop: its chat model is the policy, its tools are the
episode's.

LangChain reads a call's JSON into a dictionary and writes it again, so a message comes back in
another spelling than the policy's; the conversation recognises it. The graph's return value is not
read.
"""

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, InvalidToolCall, SystemMessage, ToolMessage
from langchain_core.messages import ToolCall as LangChainCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphRecursionError
from langgraph.graph.state import CompiledStateGraph

from posttrain.rollout.agent_loops import AgentLoop
from posttrain.rollout.agents.program import AgentHost, Served, run_program
from posttrain.rollout.episode import Episode
from posttrain.rollout.policy import Policy
from posttrain.runtime.limits import clip
from posttrain.types import Message, StopReason, ToolCall
from posttrain.worlds.tools import json_object

_ORDER = "call_ids"  # LangChain keeps good and broken calls apart; the policy wrote them in one order
MakeGraph = Callable[["PolicyChatModel", list[BaseTool]], CompiledStateGraph[Any, Any, Any, Any]]


def langgraph_loop(make_graph: MakeGraph) -> AgentLoop:
    """The agent loop of a graph over `messages`; `make_graph(model, tools)` compiles it for each
    message of the user. Beyond its `recursion_limit` the episode ends as TURN_LIMIT."""

    async def program(host: AgentHost, messages: Sequence[Message]) -> None:
        model = PolicyChatModel(host=host, thread=threading.current_thread())
        functions = [schema["function"] for schema in host.episode.task_schemas()]
        tools: list[BaseTool] = [
            _EpisodeTool(name=one["name"], description=one["description"], args_schema=one["parameters"], host=host)
            for one in functions
        ]
        graph = make_graph(model, tools)
        opening = {"messages": [to_langchain(message) for message in messages]}
        try:
            # A graph that keeps checkpoints wants a thread id.
            await graph.ainvoke(opening, {"configurable": {"thread_id": uuid.uuid4().hex}})
        except GraphRecursionError:
            host.end(StopReason.TURN_LIMIT)

    async def loop(episode: Episode, policy: Policy) -> StopReason:
        return await run_program(episode, policy, program)

    return loop


class PolicyChatModel(BaseChatModel):
    """One episode's policy as a LangChain chat model, at the rollout's temperature."""

    host: Any  # AgentHost; pydantic would check what it cannot
    thread: Any  # of the event loop
    cache: bool = False  # every message is a sample

    @property
    def _llm_type(self) -> str:
        return "posttrain-policy"

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Raises ValueError where `tool_choice` forces a call: a rollout's model chooses freely."""
        if tool_choice not in (None, "auto"):
            raise ValueError(
                f"tool_choice is {tool_choice!r}, and a rollout's model chooses freely whether to call a tool: "
                "leave it out"
            )
        own = {schema["function"]["name"]: schema for schema in self.host.episode.task_schemas()}
        return self.bind(
            tools=[
                own[tool.name] if isinstance(tool, _EpisodeTool) else convert_to_openai_tool(tool) for tool in tools
            ],
            **kwargs,
        )

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002 (passed by name)
        **kwargs: Any,
    ) -> ChatResult:
        if stop:
            raise ValueError(f"stop is {stop!r}, and a rollout's messages end where the model ends them: leave it out")
        served = await self.host.reply([from_langchain(message) for message in messages], kwargs.get("tools", ()))
        return ChatResult(generations=[ChatGeneration(message=_ai_message(served))])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 (passed by name)
        **kwargs: Any,
    ) -> ChatResult:
        """For nodes that are plain functions, which LangGraph runs in threads."""
        if threading.current_thread() is self.thread:
            raise RuntimeError(
                "invoke would wait for the event loop that it holds up: in a coroutine, `await model.ainvoke(…)`"
            )
        return asyncio.run_coroutine_threadsafe(
            self._agenerate(messages, stop, **kwargs), self.host.over.get_loop()
        ).result()


class _EpisodeTool(BaseTool):
    host: Any

    async def _arun(self, **arguments: Any) -> str:
        content: str = await self.host.run_call(self.name, json.dumps(arguments, ensure_ascii=False))
        return content

    def _run(self, **arguments: Any) -> str:
        """For nodes that are plain functions, which LangGraph runs in threads."""
        return asyncio.run_coroutine_threadsafe(self._arun(**arguments), self.host.over.get_loop()).result()


def to_langchain(message: Message) -> BaseMessage:
    """LangChain's form of a message; a call without a JSON object is an invalid call there."""
    match message.role:
        case "system":
            return SystemMessage(message.content)
        case "user":
            return HumanMessage(message.content)
        case "tool":
            return ToolMessage(message.content, tool_call_id=message.tool_call_id or "")
    calls, invalid_calls = [], []
    for call in message.tool_calls:
        arguments = json_object(call.arguments)
        if arguments is None:
            invalid_calls.append(
                InvalidToolCall(
                    type="invalid_tool_call", id=call.id, name=call.name, args=call.arguments, error="no JSON object"
                )
            )
        else:
            calls.append(LangChainCall(type="tool_call", id=call.id, name=call.name, args=arguments))
    also = {"reasoning_content": message.reasoning_content} if message.reasoning_content else {}
    return AIMessage(
        message.content,
        tool_calls=calls,
        invalid_tool_calls=invalid_calls,
        additional_kwargs={**also, _ORDER: [call.id for call in message.tool_calls]},
    )


def from_langchain(message: BaseMessage) -> Message:
    """Raises ValueError for parts that are no text, and for other types of messages."""
    content = _text(message)
    match message:
        case SystemMessage():
            return Message("system", content)
        case HumanMessage():
            return Message("user", content)
        case ToolMessage():
            return Message("tool", content, tool_call_id=message.tool_call_id)
        case AIMessage():
            calls = [
                ToolCall(call["id"] or "", call["name"], json.dumps(call["args"], ensure_ascii=False))
                for call in message.tool_calls
            ]
            calls += [
                ToolCall(call["id"] or "", call["name"] or "", call["args"] or "")
                for call in message.invalid_tool_calls
            ]
            order = message.additional_kwargs.get(_ORDER, [])
            calls.sort(key=lambda call: order.index(call.id) if call.id in order else len(order))
            return Message("assistant", content, message.additional_kwargs.get("reasoning_content"), tuple(calls))
    raise ValueError(
        f"a message of type {message.type!r} has no place in a chat with tools; use system, human, ai and tool"
    )


def _ai_message(served: Served) -> BaseMessage:
    message = to_langchain(served.message)
    total = served.num_read + served.num_written
    usage = {"input_tokens": served.num_read, "output_tokens": served.num_written, "total_tokens": total}
    return message.model_copy(update={"usage_metadata": usage, "response_metadata": {"finish_reason": served.finish}})


def _text(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in message.content]
    if other := [part for part in parts if part.get("type") != "text"]:
        raise ValueError(
            f"a message has a part that is no text, which this model cannot read: {clip(str(other[0]), 200)}"
        )
    return "".join(part["text"] for part in parts)
