"""Renders each part of an episode with any chat template, as the difference of two renderings.

No model family is known here. Probe texts with a marker are rendered once; where the marker comes
out tells how the template ends a message, writes reasoning and calls, and takes arguments. Texts
that the agent reads are escaped (`special_token_escape`); whoever tokenises cuts at each BREAK.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.models.call_formats.format import ToolCallFormat, is_nested_deep
from posttrain.models.call_formats.json_formats import Hermes, Llama3Json, Mistral
from posttrain.models.call_formats.pythonic import Pythonic
from posttrain.models.call_formats.response_template import ResponseTemplateFormat, response_template_of
from posttrain.models.chat_template import THOUGHT
from posttrain.models.special_token_escape import SpecialTokenEscape
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import reason
from posttrain.types import Message, ToolCall

FORMATS: tuple[ToolCallFormat, ...] = (Hermes(), Llama3Json(), Mistral(), Pythonic())
_MARKER = "mark_5e1f0c"  # comes out of any template and of JSON as it went in, and stands in no conversation
_TOOL = "tool_5e1f0c"
_DATE = "26 Jul 2024"  # Llama's templates write it where they know no date, and else today's
_USER = {"role": "user", "content": "u"}


class ChatRenderer:
    """Renders with a tokenizer's chat template. Raises ConfigurationError where it has none, or
    one without a chat with tools."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise ConfigurationError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template, so an agent's turns have no form: "
                "choose an instruction-tuned model"
            )
        if "strftime_now" in str(tokenizer.chat_template) and "date_string" not in str(tokenizer.chat_template):
            raise ConfigurationError(
                f"the chat template of {tokenizer.name_or_path!r} writes today's date into the prompt, "
                "so equal inputs would give other tokens "
                "tomorrow: remove strftime_now from a copy of the template"
            )
        self._texts: dict[Message, str] = {}
        self._template_id: Callable[[str], str] = str
        self._turn_start = self._render([_USER], is_agents_turn=True)
        self._added = [token.content for token in tokenizer.added_tokens_decoder.values()]
        self._text_end = self._find_text_end()
        self.call_format, self._wants_objects = self._find_call_format()
        self._call_end, self._names_results = self._find_call_end()
        self._has_reasoning, self.thought = self._find_thought()
        self._escape = SpecialTokenEscape(tokenizer, self.call_format, self.thought)
        self._may_repeat = self._find_may_repeat()

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Tokens that end a message of the agent: one, or another behind calls."""
        return tuple(dict.fromkeys((self._text_end, self._call_end)))

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """Opening messages with the tools offered, and the generation prompt."""
        given = [self._given(message) for message in messages]
        return self._render(given, tools=self._escape.escape_json(tools), is_agents_turn=True)

    def assistant(self, message: Message) -> str:
        if message not in self._texts:
            self._texts[message] = self._assistant(self._own(message))
        return self._texts[message]

    def names_of(self, messages: Sequence[Message], calls: Sequence[ToolCall]) -> tuple[str, ...]:
        """The tool's name of each result, "f" where no call has its id; empty where the template
        writes none."""
        if not self._names_results:
            return ()
        names = {call.id: self._escape.escape(call.name) for call in calls}
        return tuple(names.get(message.tool_call_id or "", "f") for message in messages if message.role == "tool")

    def between(self, messages: Sequence[Message], names: Sequence[str] = ()) -> str:
        """The text between an agent's stop token and its next message: the end of a rendering
        with a stand-in for its message."""
        end = self._text_end
        if any(message.role == "tool" for message in messages):
            results = [(index, message) for index, message in enumerate(messages) if message.role == "tool"]
            ids = [self._escape.escape(message.tool_call_id or f"call_{index}") for index, message in results]
            pairs = zip(map(self._template_id, ids), names or ["f"] * len(ids), strict=True)
            arguments = self._arguments("a", _MARKER)
            calls = [_call(call_id, name, arguments) for call_id, name in pairs][: None if self._may_repeat else 1]
            before, end = {"role": "assistant", "content": "", "tool_calls": calls}, self._call_end
        else:
            before = {"role": "assistant", "content": _MARKER}
        num_markers = len(before.get("tool_calls", [before]))
        rendered = self._render([_USER, before, *map(self._given, messages)], is_agents_turn=True)
        behind = rendered.split(_MARKER, num_markers)[-1]
        return behind[behind.index(end) + len(end) :]

    def _assistant(self, message: Message) -> str:
        content = self._with_reasoning(self._with_arguments(message))
        rendered = self._render([_USER, content])
        if not rendered.startswith(self._turn_start):
            raise ConfigurationError(
                f"the chat template writes an agent's message as {rendered!r}, "
                f"which does not begin with its own prompt {self._turn_start!r}: "
                "what is trained would not be what is sampled. Choose a model whose template adds nothing of its "
                "own behind the prompt"
            )
        written = rendered[len(self._turn_start) :]
        end = self._call_end if message.tool_calls else self._text_end
        written = written[: written.rindex(end)] + end if end in written else written + end
        if (text := (content.get("content") or "").strip()) not in written:
            raise ConfigurationError(
                f"the chat template of {self._tokenizer.name_or_path!r} leaves out what an agent says beside a call "
                f"({text[:80]!r}), and nobody would learn it: choose another model or one of our templates as "
                "model.chat_template, or demonstrations that say nothing there (generate_data.reasoning_frac: 0)"
            )
        for index, call in enumerate(message.tool_calls):
            if (placeholder := self.call_format.placeholder(_key(index), written)) is not None:
                written = written.replace(placeholder, self.call_format.arguments(call.arguments, placeholder))
        return written

    def _own(self, message: Message) -> Message:
        """An agent's message, escaped but for special tokens of reasoning and calls."""
        escape = self._escape.escape_agent
        calls = (ToolCall(escape(call.id), escape(call.name), escape(call.arguments)) for call in message.tool_calls)
        reasoning = message.reasoning_content and escape(message.reasoning_content)
        content = escape(message.content)
        return replace(message, content=content, reasoning_content=reasoning, tool_calls=tuple(calls))

    def _given(self, message: Message) -> dict[str, Any]:
        if message.role == "assistant":
            return self._own(message).to_openai()
        content = message.to_openai()
        if message.tool_call_id is not None:
            content["tool_call_id"] = self._template_id(message.tool_call_id)
        return {key: self._escape.escape(value) for key, value in content.items() if isinstance(value, str)}

    def _with_arguments(self, message: Message) -> dict[str, Any]:
        """Arguments as objects where the template wants them, placeholders for text that is
        none."""
        content = message.to_openai()
        if message.tool_calls:
            content["tool_calls"] = [
                _call(self._template_id(call.id), call.name, self._as_wanted(call.arguments, index))
                for index, call in enumerate(message.tool_calls)
            ]
        return content

    def _arguments(self, key: str, value: str) -> dict[str, str] | str:
        return {key: value} if self._wants_objects else json.dumps({key: value})

    def _as_wanted(self, arguments: str, index: int) -> Mapping[str, Any] | str:
        if not self._wants_objects:
            return arguments if arguments.strip() else "{}"
        return _as_object(arguments, index) if self.call_format.writes_objects else _placeholder(index)

    def _with_reasoning(self, content: dict[str, Any]) -> dict[str, Any]:
        """Reasoning goes into the content where the template has no place for it."""
        if self._has_reasoning or "reasoning_content" not in content:
            return content
        text = "\n\n" + content["content"] if content["content"] else ""
        reasoning = f"<think>\n{content['reasoning_content']}\n</think>"
        others = {key: value for key, value in content.items() if key != "reasoning_content"}
        return {**others, "content": reasoning + text}

    def _find_text_end(self) -> str:
        """The token behind an agent's text, or the one that begins the user's turn."""
        probe = {"role": "assistant", "content": _MARKER}
        behind = self._render([_USER, probe]).partition(_MARKER)[2]
        if ids := self._tokenizer(behind, add_special_tokens=False)["input_ids"]:
            return str(self._tokenizer.decode(ids[:1], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        behind = self._render([_USER, probe, _USER]).partition(_MARKER)[2]
        if (token := self._first_added(behind)) is None or not behind.startswith(token):
            raise ConfigurationError(
                f"the chat template of {self._tokenizer.name_or_path!r} does not mark the end of an agent's "
                "message, so a policy would never stop: "
                "choose another model"
            )
        return token

    def _find_call_end(self) -> tuple[str, bool]:
        """The token behind a call; and True where results are written with their tool's name."""
        call_id = self._template_id("call_0")
        arguments = self._arguments(_MARKER, _MARKER)
        before = {"role": "assistant", "content": "", "tool_calls": [_call(call_id, _TOOL, arguments)]}
        result = {"role": "tool", "content": "r", "tool_call_id": call_id}
        behind = self._render([_USER, before, result]).rpartition(_MARKER)[2]
        return self._first_added(behind, but=self.call_format.markers) or self._text_end, _TOOL in behind

    def _find_thought(self) -> tuple[bool, tuple[str, str]]:
        """True where the template has a place for reasoning, and the markers around it."""
        thinks = {"role": "assistant", "content": "c", "reasoning_content": _MARKER}
        before, marker, behind = self._render([_USER, thinks]).partition(_MARKER)
        start, end = max(map(before.rfind, self._added), default=-1), self._first_added(behind)
        if not marker or THOUGHT[0] in before or start < 0 or end is None:
            return bool(marker), THOUGHT
        return True, (before[start:].strip(), end)

    def _first_added(self, text: str, *, but: Collection[str] = ()) -> str | None:
        found = [(text.find(token), -len(token), token) for token in self._added if token in text and token not in but]
        return min(found)[2] if found else None

    def _find_call_format(self) -> tuple[ToolCallFormat, bool]:
        """The format of the template's calls, and True where it takes arguments as an object:
        OpenAI's are JSON text, which most open templates would quote once more with `tojson`."""
        found = ""
        for as_id in (str, _nine_letters):  # Mistral's templates refuse other ids
            for arguments, wants_objects in (({_MARKER: _MARKER}, True), (json.dumps({_MARKER: _MARKER}), False)):
                call = _call(as_id("call_0"), "f", arguments)
                try:
                    rendered = self._render([_USER, {"role": "assistant", "content": "", "tool_calls": [call]}])
                except ConfigurationError:
                    continue  # a template that joins strings was given an object, or the other way round
                found = found or (rendered if _MARKER in rendered else "")
                if call_format := self._format_of(rendered):
                    self._template_id = as_id
                    return call_format, wants_objects
        known = ", ".join(one.name for one in FORMATS)
        what = "writes calls in a format that is not read back" if found else "writes no tool call"
        raise ConfigurationError(
            f"the chat template of {self._tokenizer.name_or_path!r} {what} ({known} are, and what a "
            "tokenizer's response_template describes): choose a model that was "
            "trained to call tools in one of these, such as Qwen2.5 and Qwen3, or give one of ours as "
            "model.chat_template"
        )

    def _format_of(self, rendered: str) -> ToolCallFormat | None:
        """One of FORMATS, or a response template's."""
        if known := next((one for one in FORMATS if one.placeholder(_MARKER, rendered) is not None), None):
            return known
        if _MARKER not in rendered or (template := response_template_of(self._tokenizer)) is None:
            return None
        try:
            return ResponseTemplateFormat(template, self._added, _MARKER, rendered)
        except ValueError:
            return None

    def _find_may_repeat(self) -> bool:
        """True if a message may have several calls: Llama's templates refuse them."""
        calls = [ToolCall(f"call_{number}", "f", "{}") for number in range(2)]
        try:
            self._render([_USER, self._with_arguments(Message("assistant", "", None, tuple(calls)))])
        except ConfigurationError:
            return False
        return True

    def _render(
        self, messages: list[dict[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), is_agents_turn: bool = False
    ) -> str:
        schemas = [dict(tool) for tool in tools] or None
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tools=schemas, add_generation_prompt=is_agents_turn, tokenize=False, date_string=_DATE
                )
            )
        except Exception as error:  # a template is untrusted code, and may raise anything
            raise ConfigurationError(
                f"the chat template of {self._tokenizer.name_or_path!r} refuses an agent's conversation "
                f"({reason(error) or type(error).__name__}): choose another model"
            ) from error


def _call(call_id: str, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _as_object(arguments: str, index: int) -> Mapping[str, Any]:
    if is_nested_deep(arguments):  # a template writes them recursively, and its stack is not endless
        return _placeholder(index)
    try:
        content = json.loads(arguments if arguments.strip() else "{}")
    except (ValueError, RecursionError):
        return _placeholder(index)
    return content if isinstance(content, dict) else _placeholder(index)


def _placeholder(index: int) -> dict[str, str]:
    return {_key(index): _key(index)}


def _key(index: int) -> str:
    return f"arguments_{index}_as_text"


def _nine_letters(call_id: str) -> str:
    number = call_id.removeprefix("call_")
    if number.isdecimal() and len(number) <= 5:
        return f"call{int(number):05d}"
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]
