"""Size limits of texts from agents, tools, servers and files, and the one function that cuts them.

`agent.max_result_chars` of params.yaml is the limit of what an agent reads of a tool, results and
errors alike.
"""

from posttrain.runtime.redaction import redact

MAX_NUMBER = 1e9  # of a reward or another number of others, either side of 0: its square and sums stay exact enough
MAX_ANSWER_BYTES = 16 * 2**20  # of a server's answer: a message of 100,000 tokens with a log-probability each is 10 MB
MAX_ERROR_BYTES = 2**18  # read of an answer that is an error
MAX_REASON_CHARS = 500  # of an error of others, quoted in a message of ours
MAX_FAILURE_CHARS = 4_000  # of what a lost episode's record says of its end
MAX_MESSAGE_CHARS = (
    1_000_000  # of one message that an agent, its program or an endpoint writes, and of one call's arguments
)
MAX_REPLY_CHARS = 100_000  # of what the user answers
MAX_SCHEMA_CHARS = 100_000  # of one tool that an MCP server describes
MAX_LINE_BYTES = 64 * 2**20  # of an imported file
MAX_RECORD_CHARS = 16_000_000  # of one imported trajectory
_MARGIN = 2**16  # read beyond a limit, so that a key across it is seen whole: longer than any


def clip(text: str, max_chars: int) -> str:
    """`text` without keys (`redact`), and where it is longer than `max_chars`, cut there with a
    note of how long it was: `abc… [7 of 10 characters cut]`. Of a long text only what is kept is
    looked at. Halves of surrogate pairs, which no UTF-8 file can hold, become question marks."""
    if len(text) <= max_chars:
        return cut(redact(_encodable(text)), max_chars)
    head = redact(_encodable(text[: max_chars + _MARGIN]))
    if len(text) > max_chars + _MARGIN:
        head = head[: max(0, len(head) - _MARGIN)]  # where keys were removed, the end may be half of another
    return f"{head[:max_chars]}… [{len(text) - max_chars} of {len(text)} characters cut]"


def cut(text: str, max_chars: int) -> str:
    """The text up to a length, with a note of what was cut; keys are not looked for (`clip`)."""
    return (
        text
        if len(text) <= max_chars
        else f"{text[:max_chars]}… [{len(text) - max_chars} of {len(text)} characters cut]"
    )


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def reason(error: BaseException | str) -> str:
    """The message of somebody else's error, without keys and cut, to quote in ours."""
    return clip(str(error), MAX_REASON_CHARS)
