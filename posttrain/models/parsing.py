"""How the text that a policy wrote becomes a message: `<think>…</think>`, then text and calls in
the form of its family (`call_formats`).

Any text is accepted: what a policy writes is data, and its mistakes are for the world to answer and
for the rewards to count. A call that cannot be read becomes a ToolCall whose arguments are the text
as it stands, so that it fails where a wrong call fails, in `Tool.call`.
"""

from posttrain.models.call_formats.choice import HERMES
from posttrain.models.call_formats.format import Schemas, ToolCallFormat, storable
from posttrain.models.chat_template import THOUGHT
from posttrain.types import Message, ToolCall


def parse_assistant(
    text: str, form: ToolCallFormat = HERMES, *, thought: tuple[str, str] = THOUGHT, tools: Schemas = ()
) -> Message:
    """The message that `text` (stop token removed) is, by a policy that thinks between the marks
    `thought` and was offered `tools`. Never raises.

    Calls are numbered `call_0`, `call_1`, …; reasoning that is empty is None; reasoning that never
    ends leaves no content and no calls, because what is thought is not said. Text around the calls
    is the content, pieces joined by a newline.

    >>>
    parse_assistant('<think>B</think><tool_call>{"name":"get_price","arguments":{"code":"4711"}}</tool_call>').tool_calls
    (ToolCall(id='call_0', name='get_price', arguments='{"code":"4711"}'),)
    """
    reasoning, said = _split_reasoning(storable(text), thought, form)
    content, written = form.read(said, tools)
    calls = tuple(ToolCall(f"call_{index}", *one) for index, one in enumerate(written))
    return Message("assistant", content, reasoning.strip() or None, calls)


def _split_reasoning(text: str, thought: tuple[str, str], form: ToolCallFormat) -> tuple[str, str]:
    """Reasoning stands first; its opening mark may be missing, because some templates write it in
    the prompt."""
    start, end = thought
    before, mark, after = text.partition(end)
    opened = before.lstrip().startswith(start)
    if not mark:
        return (before.lstrip().removeprefix(start), "") if opened else ("", text)
    if not opened and (start in before or any(mark in before for mark in form.marks)):
        return "", text  # not the form that reasoning has: a stray mark in text or in a call
    return before.lstrip().removeprefix(start), after
