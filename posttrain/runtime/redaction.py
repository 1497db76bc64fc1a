"""Cuts keys out of text that came from outside, before it is printed, stored or read by an agent.

Two things are taken for a key: the value of an environment variable (or of a line of `.env` in the
working folder) whose name says so, and what looks like a key of a kind in `key_kinds.py` wherever
it stands. A text is searched as it is and with its escapes read (those of JSON, URLs, HTML, MIME
and terminals, one within another), and so is what base64 and hex in it stand for. A text that holds
no key comes back as it was, so a result depends on a machine's keys only where one of them really
stood in it. Whole texts are to be handed in, before they are cut to a length: part of a key is
known only from some twelve characters on. Time is linear in the text.
"""

import base64
import binascii
import html
import itertools
import logging
import math
import os
import re
import sys
import threading
import traceback
import urllib.parse
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from posttrain.runtime.key_kinds import DISTINCT, NAMED, WORDLIKE

MIN_KEY_CHARS = 8
# so many characters of a random key are known for it, _OWN of them behind the prefix of its kind
_LEAD, _OWN = 12, 6
_LINE_CHARS = 32  # of a key with several lines, each of this length or more is one
_MAX_ENV_FILE_BYTES = 1_000_000
_DEPTH = 3  # of escapes within escapes, any number of backslashes being one
_MAX_BLOCK_LINES = 500
# AUTHOR, KEYBOARD, TOKENIZERS and PATH say something else
_SAYS_KEY = re.compile(
    r"key(?!board|map)|token(?!i[sz]e)|secret|passw|passphrase|pass(?=_|$)|credential|auth(?!or(?!i[sz]))"
    r"|(?<![a-z])pat(?=_|$)|cookie|webhook",
    re.IGNORECASE,
)
# An address is a key where a login stands in it
_SAYS_ADDRESS = re.compile(r"(?<![a-z])(?:dsn|conn|connection|conn(?:ection)?_?str(?:ing)?)(?=_|$)", re.IGNORECASE)
_SAYS_PASSWORD = re.compile(r"secret|pass", re.IGNORECASE)
_KIND = re.compile(r"(?:[a-z0-9]{1,8}[-_.]){0,3}")
_RANDOM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+/=.~-]{19,}")
_PLACEHOLDER = re.compile(r"passw(?:or)?d|pass|pwd|secret|token|key|x{2,}|\*+|\.{3}|[${%].*", re.IGNORECASE)
_remembered: dict[tuple[str, str], None] = {}
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


class _Span(NamedTuple):
    """Place of a key in a text; `name` is that of its variable, empty for a key of a known kind."""

    start: int
    stop: int
    name: str = ""


def redact(text: str) -> str:
    """`text` with `[key removed: NAME]` for the value of the variable NAME, and `[key removed]` for
    a key of a well-known kind."""
    if len(text) < MIN_KEY_CHARS:
        return text
    # not os.environb.items(): it decodes every name anew, a tenth of the time of a scripted episode
    variables = tuple(os.environ._data.items())  # type: ignore[attr-defined]
    literals = _literals((*_keys_of_environment(variables), *_env_file_keys(), *_remembered))
    kept, end = [], 0
    for span in _merged(_find(text, literals, _DEPTH)):
        kept += [text[end : span.start], f"[key removed: {span.name}]" if span.name else "[key removed]"]
        end = span.stop
    return "".join([*kept, text[end:]]) if kept else text


def redact_lines(lines: Iterable[str]) -> Iterator[str]:
    """Each line redacted, together with those that it goes on in: a private key has many, and a
    text may be folded. They come without their ends."""
    block: list[str] = []
    is_key = False
    for line in lines:
        block.append(line)
        is_key = "-----END" not in line and bool(_PEM_FIRST.search(line) or (is_key and _PEM_LINE.search(line)))
        if not (is_key or _FOLDED.search(line)) or len(block) == _MAX_BLOCK_LINES:
            yield from redact("\n".join(block)).split("\n")
            block.clear()
    if block:
        yield from redact("\n".join(block)).split("\n")


def remember_keys(variables: Mapping[str, str]) -> None:
    """Register more variables of this process as the environment's, such as those of a server."""
    _remembered.update(dict.fromkeys(_named_keys(variables)))


def redact_values(value: object) -> object:
    """JSON's values with every string redacted, names included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact(str(name)): redact_values(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [redact_values(item) for item in value]
    return value


def redacted_traceback(error: BaseException) -> str:
    """Traceback of an exception, its causes included, without keys; it ends with a newline."""
    return redact("".join(traceback.format_exception(error)))


def redact_uncaught() -> None:
    """Redact uncaught tracebacks of all threads, and all logs, from here on."""
    redact_logs()
    sys.excepthook = _print_uncaught
    threading.excepthook = _print_uncaught_in_thread


def redact_logs() -> None:
    """Whatever is logged has no keys from here on: libraries log what servers say."""
    make_record = logging.getLogRecordFactory()
    if getattr(make_record, "is_redacting", False):
        return

    def make_redacted(*arguments: object, **others: object) -> logging.LogRecord:
        record = make_record(*arguments, **others)
        return _redacted(record)

    make_redacted.is_redacting = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_redacted)


def _redacted(record: logging.LogRecord) -> logging.LogRecord:
    try:
        message = record.getMessage()
    except (TypeError, ValueError):  # the record's own mistake, which logging reports
        return record
    if (redacted := redact(message)) != message:
        record.msg, record.args = redacted, ()
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = redacted_traceback(record.exc_info[1]).rstrip(
            "\n"
        )  # what a formatter takes instead of formatting it
    return record


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write(redacted_traceback(error.with_traceback(trace)))
    sys.stderr.flush()


def _print_uncaught_in_thread(end: threading.ExceptHookArgs) -> None:
    if end.exc_value is not None and not issubclass(end.exc_type, SystemExit):
        _print_uncaught(end.exc_type, end.exc_value, end.exc_traceback)


@lru_cache(maxsize=4)
def _keys_of_environment(variables: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[str, str], ...]:
    """Asked for with every text, so as bytes: decoding takes longer than redacting."""
    return _named_keys({os.fsdecode(name): os.fsdecode(content) for name, content in variables})


def _named_keys(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(name, value) of those that are keys; of a URL with a password, that. A number, a path that
    exists and a plain word (`anything`, which servers without keys take) are none; a word in a
    variable that says password is."""
    return tuple((name, value) for name, content in variables.items() for value in _secrets_in(name, content))


def _secrets_in(name: str, content: str) -> Iterator[str]:
    content = content.strip()
    if "://" in content and "@" in content:
        password = re.search(r"://[^/\s:@]*:([^/\s@]+)@", content)
        if password and not _PLACEHOLDER.fullmatch(password[1]):
            yield from (one for one in {password[1], urllib.parse.unquote(password[1])} if len(one) >= MIN_KEY_CHARS)
    is_address = bool(_SAYS_ADDRESS.search(name)) and ("@" in content or "=" in content)
    says_key = is_address or _SAYS_KEY.search(name)
    if len(content) < MIN_KEY_CHARS or not says_key or re.fullmatch(r"[\d.,:+-]+", content):
        return
    is_word = content.isalpha() and (content.islower() or content.isupper() or content.istitle())
    if (is_word and not _SAYS_PASSWORD.search(name)) or (
        content.startswith(("/", "~")) and os.path.exists(os.path.expanduser(content))
    ):
        return
    yield content
    if "\n" in content:  # a PEM file, which may be quoted by the line
        yield from (
            line.strip()
            for line in content.splitlines()
            if len(line.strip()) >= _LINE_CHARS and not line.startswith("-----")
        )


def _env_file_keys() -> tuple[tuple[str, str], ...]:
    """Keys of the tree's `.env`. A stage works in a copy of the tree, which has none."""
    path = os.path.join(os.environ.get("POSTTRAIN_STAGE_ROOT", ""), ".env")
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return _keys_of_file(os.path.abspath(path), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _keys_of_file(path: str, _modified_ns: int, size: int) -> tuple[tuple[str, str], ...]:
    if size > _MAX_ENV_FILE_BYTES:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    found = [re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*", line) for line in lines]
    return _named_keys({one[1]: _unquoted(one[2]) for one in found if one})


def _unquoted(content: str) -> str:
    if len(content) > 1 and content[0] in "'\"" and (end := content.find(content[0], 1)) > 0:
        return content[1:end]
    return re.split(r"\s+#", content, maxsplit=1)[0]


class _Literal(NamedTuple):
    """A way to write a variable's value. `lead` is looked for, and as much of `whole` as goes on
    from it is removed: the lead of a random text is nobody else's, that of a path or a sentence is
    the whole."""

    lead: str
    whole: str
    name: str
    is_base64: bool = False


@lru_cache(maxsize=16)
def _literals(keys: tuple[tuple[str, str], ...]) -> tuple[_Literal, ...]:
    found: dict[_Literal, None] = {}
    for name, value in keys:
        content = value.encode()
        length = max(_LEAD, _num_of_kind(value) + _OWN) if _is_random(value) else len(value)
        plain = (value, content.decode("latin-1"))  # a URL's %C3%A4 is read as two characters
        for form in (*plain, *(one.replace(" ", "+") for one in plain)):
            for spelling in (form, *(one.text for one in _unescaped_forms(form) if len(one.text) >= MIN_KEY_CHARS)):
                found[_Literal(spelling[:length] if length < len(value) else spelling, spelling, name)] = None
        for code in (content.hex(), content.hex().upper()):
            found[_Literal(code[: 2 * length] if length < len(value) else code, code, name)] = None
        for code in _base64_spellings(content):
            lead = code[: 4 * length // 3] if length < len(value) else code
            found[_Literal(lead, code, name, is_base64=True)] = None
    return tuple(found)


def _num_of_kind(value: str) -> int:
    """Length of the prefix that names the kind of key: `sk-proj-`, `github_pat_`."""
    kind = _KIND.match(value)
    return kind.end() if kind else 0


def _is_random(value: str) -> bool:
    is_address = "://" in value or value.startswith(("/", "~", "./"))
    return (
        bool(_RANDOM.fullmatch(value)) and not is_address and sum(map(str.isdigit, value)) > 2 and len(set(value)) >= 10
    )


def _base64_spellings(content: bytes) -> list[str]:
    """Base64 of a key within a longer text: what depends on it alone, at each of three offsets."""
    found = []
    for offset in range(3):
        code = base64.b64encode(b"\0" * offset + content).decode().rstrip("=")
        own = code[-(-offset * 8 // 6) : (offset + len(content)) * 8 // 6]
        found += [own, own.replace("+", "-").replace("/", "_")]
    return list(dict.fromkeys(found))


def _merged(spans: list[_Span]) -> Iterator[_Span]:
    """Spans in order and without overlaps. A merged span keeps the name of any part."""
    spans.sort(key=lambda span: (span.start, -span.stop))
    for index, span in enumerate(spans[1:], 1):
        before = spans[index - 1]
        if span.start < before.stop:
            spans[index] = _Span(before.start, max(before.stop, span.stop), before.name or span.name)
        else:
            yield before
    yield from spans[-1:]


class _View(NamedTuple):
    """A decoded text; `origin(start, stop)` gives the place of these characters in the original."""

    text: str
    origin: Callable[[int, int], tuple[int, int]]


def _find(text: str, literals: Sequence[_Literal], depth: int) -> list[_Span]:
    """The keys of a text and of what it stands for, some of them twice."""
    letters = text.encode("latin-1", "replace")  # a byte for each character
    found = [*_values(text, literals), *_named(text, letters.lower())]
    found += [_Span(*block.span()) for block in _PRIVATE_KEY.finditer(text)]
    for view in _unescaped(text) if depth else ():
        found += [_Span(*view.origin(*span[:2]), span.name) for span in _find(view.text, literals, depth - 1)]
    for start, stop in map(re.Match.span, _RUN.finditer(letters.translate(_BLUR))):
        look = _look if stop - start < _MAX_REMEMBERED_CHARS else _look.__wrapped__
        spans, codes = look(text[start:stop])
        for code in codes if depth else ():
            inner = _find(code.text, literals, depth - 1)
            spans = [*spans, *(_Span(*code.origin(*span[:2]), span.name) for span in inner)]
        found += [_Span(start + span.start, start + span.stop, span.name) for span in spans]
    return found


def _values(text: str, literals: Sequence[_Literal]) -> Iterator[_Span]:
    for lead, whole, name, is_base64 in literals:
        stop, start = 0, text.find(lead)
        while start >= 0:
            same = os.path.commonprefix((whole, text[start : start + len(whole)]))  # noqa: RUF071 of characters
            begin, stop = start, start + len(same)
            if is_base64:  # a character beside it holds bits of the key's first or last byte
                begin -= begin > 0 and text[begin - 1] in _BASE64
                stop += stop < len(text) and text[stop] in _BASE64
            yield _Span(begin, stop, name)
            start = text.find(lead, stop)


# A search of all text by the expressions of all kinds takes seconds for 10 MB. Keys stand in runs
# of these characters, which are few, and mostly names that come again.
_IN_KEYS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:+=~@"
_BLUR = bytes(ord("k") if code in _IN_KEYS else ord(" ") for code in range(256))
_RUN = re.compile(b"k" * 16 + b"k*+")  # no key of a kind has fewer
_MAX_REMEMBERED_CHARS = 256


@lru_cache(maxsize=4096)
def _look(run: str) -> tuple[Sequence[_Span], Sequence[_View]]:
    """The keys of known kinds in a run, and what base64 and hex in it stand for, where that is
    ASCII for a while at least."""
    distinct, wordlike = _shapes()
    spans = [_Span(*found.span()) for found in distinct.finditer(run)]
    spans += [_Span(*found.span()) for found in wordlike.finditer(run) if _has_digit(found[0])]
    codes = [_coded(*found.span(), 2.0, bytes.fromhex(found[0])) for found in _HEX.finditer(run)]
    for found in _BASE64_ASCII.finditer(run):
        start = found.start()
        start -= 4 * (
            start >= 4 and _BASE64.issuperset(run[start - 4 : start])
        )  # the key may begin in what is half ASCII
        codes.append(_coded(start, found.end(), 4 / 3, _of_base64(run[start : found.end()])))
    return spans, codes


def _coded(begin: int, end: int, num_chars: float, content: bytes) -> _View:
    """Decoded view of the code from `begin` to `end`, with `num_chars` characters for each byte; a
    character that holds bits of two bytes belongs to both. A code without its padding stands for
    more bytes than it has characters for: nothing ends behind it."""
    return _View(
        content.decode("latin-1"),
        lambda start, stop: (begin + math.floor(start * num_chars), min(end, begin + math.ceil(stop * num_chars))),
    )


@lru_cache(maxsize=1)
def _shapes() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compiled where there is a first text to search, not where a command only imports this."""
    distinct, wordlike = ("|".join(kind.pattern for kind in kinds) for kinds in (DISTINCT, WORDLIKE))
    return re.compile(distinct), re.compile(rf"(?<![A-Za-z0-9_-])(?:{wordlike})")


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def _named(text: str, lowered: bytes) -> Iterator[_Span]:
    for sign, pattern, is_key in _named_patterns():
        start = lowered.find(sign)
        while start >= 0:
            found = pattern.match(text, start + len(sign))
            if found and is_key(found):
                yield _Span(*found.span("key"))
            start = lowered.find(sign, found.end() if found else start + len(sign))


@lru_cache(maxsize=1)
def _named_patterns() -> list[tuple[bytes, re.Pattern[str], Callable[[re.Match[str]], bool]]]:
    checks = {"HTTP basic": _is_login, "password of an address": lambda found: not _PLACEHOLDER.fullmatch(found["key"])}
    return [
        (kind.sign.encode(), re.compile(kind.pattern), checks.get(kind.name, lambda found: _has_digit(found["key"])))
        for kind in NAMED
    ]


def _is_login(found: re.Match[str]) -> bool:
    """Behind `Basic` stands base64 of `user:password`, or a word of a sentence."""
    return "authorization" in found.string[max(0, found.start() - 24) : found.start()].lower() or b":" in _of_base64(
        found["key"].rstrip("=")
    )


_PEM = "[A-Z0-9 +]{0,40}PRIVATE[ +]KEY(?:[ +]BLOCK)?-----"  # a form writes a space as a plus
_PEM_BODY = r"(?:[A-Za-z0-9+/=\s:,]|\\[nr])*+"  # where the last line is missing, as far as it looks like one
_PRIVATE_KEY = re.compile(rf"-----BEGIN[ +]{_PEM}(?:(?:[^-]|-(?!----)){{0,20000}}+-----END[ +]{_PEM}|{_PEM_BODY})")
_FOLDED = re.compile(r"\\$|[A-Za-z0-9]=$")
_PEM_FIRST = re.compile("-----BEGIN|KEY-----")
_PEM_LINE = re.compile(r"(?:(?:^|[\s:,])[A-Za-z0-9+/]{4,76}={0,2}|^)\s*$")

_ESCAPE = re.compile(  # each branch begins with a character of its own, by which `re` finds it ten times as fast
    r"(\\(?:\\\\){1,31}n[ \t]*(?:\\{1,63}(?=[ \t]))?"  # a continued line that JSON has quoted
    r"|\\\\{0,63}(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[0-3][0-7]{2}|[nrtbfv0e\"'/]|\r?\n[ \t]*(?:\\(?=[ \t]))?|)"
    r"|%[0-9a-fA-F]{2}|&(?:\#[0-9]{1,7}|\#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8});"
    r"|\x1b\[[0-9;]{0,32}[A-Za-z]|\^\[\[[0-9;]{0,32}[A-Za-z])"
)
_MIME, _MIME_BREAK = re.compile(r"(=(?:[0-9A-F]{2}|\r?\n))"), re.compile(r"=\r?\n[A-Za-z0-9]")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "e": "\x1b"}


def _unescaped(text: str) -> Iterator[_View]:
    """The text with its escapes read once, if it has any; those of MIME, which others take for what
    a variable is set to, apart."""
    if any(sign in text for sign in "\\%&\x1b^"):
        yield from _read(text, _ESCAPE)
    if "=3D" in text or _MIME_BREAK.search(text):
        yield from _read(text, _MIME)


def _read(text: str, escapes: re.Pattern[str]) -> Iterator[_View]:
    parts = escapes.split(text)
    if len(parts) == 1:
        return
    read = parts.copy()
    read[1::2] = map(_character_of, parts[1::2])

    @lru_cache(maxsize=1)
    def ends() -> list[list[int]]:
        """Ends of each part, in the decoded text and in the original."""
        return [list(itertools.accumulate(map(len, some))) for some in (read, parts)]

    def origin(start: int, stop: int) -> tuple[int, int]:
        read_ends, own_ends = ends()
        first, last = bisect_right(read_ends, start), bisect_right(read_ends, stop - 1)
        begin = own_ends[first] - (len(parts[first]) if first % 2 else read_ends[first] - start)
        return begin, own_ends[last] - (0 if last % 2 else read_ends[last] - stop)

    yield _View("".join(read), origin)


def _unescaped_forms(text: str) -> Iterator[_View]:
    """The text with its escapes read once, twice and so on."""
    for _ in range(_DEPTH):
        for view in _unescaped(text):
            yield view
            text = view.text


@lru_cache(maxsize=4096)
def _character_of(escape: str) -> str:
    if escape[0] == "&":
        return html.unescape(escape)
    if escape[0] in "%=":
        return "" if escape[-1] == "\n" else chr(int(escape[1:], 16))
    code = escape.lstrip("\\")
    is_continued = code[:1] in ("\r", "\n") or (code[:1] == "n" and len(escape) - len(code) in range(3, 64, 2))
    if escape[0] != "\\" or is_continued:  # the former is a colour
        return ""
    if len(code) > 1 and code[0] in "ux":
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if len(code) == 3 else _CONTROLS.get(code, code or "\\")


_HEX = re.compile(r"(?:[2-7][0-9a-fA-F]|0[9aAdD]){16,}+")
# Four characters at a time that stand for ASCII, whose bytes all begin with the bit 0
_BASE64_ASCII = re.compile(
    r"(?:[A-Za-f][A-HQ-Xg-nw-z0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/_-]){5,}+[A-Za-z0-9+/_-]{0,4}"
)


def _of_base64(code: str) -> bytes:
    code = code.replace("-", "+").replace("_", "/")
    return binascii.a2b_base64(code + "A" * (-len(code) % 4))
