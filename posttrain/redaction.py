"""Cuts keys out of text that came from outside, before it is printed, stored or read by an agent.

Two things are taken for a key: the value of an environment variable (or of a line of `.env` in the
working folder) whose name says so, in every spelling in which servers quote one; and what looks
like a key of a well-known kind wherever it stands. A text that holds neither comes back as it was,
so a result depends on a machine's keys only where one of them really stood in it. Whole texts are
to be handed in, before they are cut to a length: part of a key is known only from some twelve
characters on. Time is linear in the text.
"""

import base64
import binascii
import html
import json
import logging
import os
import re
import sys
import threading
import traceback
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType

MIN_KEY_CHARS = 8
_LEAD, _OWN = (
    12,
    6,
)  # so many characters of a random key are known for it, _OWN of them behind what the keys of its kind begin with
_LINE_CHARS = 32  # of a key with several lines, each of this length or more is one
_MAX_ENV_FILE_BYTES = 1_000_000
# AUTHOR, KEYBOARD and TOKENIZERS say something else
_SAYS_KEY = re.compile(
    r"key(?!board|map)|token(?!i[sz]e)|secret|passw|passphrase|pass(?=_|$)|credential|auth(?!or(?!i[sz]))",
    re.IGNORECASE,
)
_SAYS_PASSWORD = re.compile(r"secret|pass", re.IGNORECASE)
_KIND = re.compile(r"(?:[a-z0-9]{1,8}[-_.]){0,3}")
_RANDOM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+/=.~-]{19,}")
_PLACEHOLDER = re.compile(r"passw(?:or)?d|pass|pwd|secret|token|key|x{2,}|\*+|\.{3}|[${%].*", re.IGNORECASE)
_remembered: dict[tuple[str, str], None] = {}
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")
_WORDS = "A-Za-z0-9_-"
_PEM = "[A-Z0-9 ]{0,40}PRIVATE KEY-----"
_HEADER = r"""(?P<header>[Aa]uthorization[\\"']{0,4}[ \t]?[:=][ \t]?[\\"']{0,4})?"""


def redact(text: str) -> str:
    """`text` with `[key removed: NAME]` for the value of the variable NAME, and `[key removed]` for
    a key of a well-known kind."""
    if len(text) < MIN_KEY_CHARS:
        return text
    for spellings in _known((*_keys_of_environment(tuple(os.environb.items())), *_env_file_keys(), *_remembered)):
        text = spellings.removed_from(text)
    for sign, pattern, replaced in _KINDS:
        if sign in text:
            text = pattern.sub(replaced, text)
    return text


def remember_keys(variables: Mapping[str, str]) -> None:
    """Also these are keys for this process, such as the variables that a server is started with;
    their names must say so, as the environment's."""
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
    """What Python prints of an uncaught exception, its causes included, with a newline at the
    end."""
    return redact("".join(traceback.format_exception(error)))


def redact_uncaught() -> None:
    """Tracebacks of uncaught exceptions, of any thread, and whatever is logged have no keys from
    here on."""
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


@dataclass(frozen=True, slots=True)
class _Spellings:
    """Ways to write keys that begin alike. `lead` is looked for; where it stands, the longest of
    `whole` that goes on from it is removed, and where none does, what there is of one of them, if
    `is_enough`: the lead of a random text is nobody else's, that of a path or a sentence is."""

    lead: str
    whole: tuple[tuple[str, str], ...]  # (spelling, name of the variable), the longest first
    is_enough: bool
    is_base64: bool = False

    def removed_from(self, text: str) -> str:
        start = text.find(self.lead)
        if start < 0:
            return text
        kept, end = [], 0
        while start >= 0:
            length, name = self._match(text, start)
            if length:
                begin, stop = start, start + length
                if self.is_base64:  # a character beside it holds bits of the key's first or last byte
                    begin -= begin > end and text[begin - 1] in _BASE64
                    stop += stop < len(text) and text[stop] in _BASE64
                kept += [text[end:begin], f"[key removed: {name}]"]
                end = stop
            start = text.find(self.lead, max(end, start + 1))
        return "".join([*kept, text[end:]])

    def _match(self, text: str, start: int) -> tuple[int, str]:
        for spelling, name in self.whole:
            if text.startswith(spelling, start):
                return len(spelling), name
        if not self.is_enough:
            return 0, ""
        return max((_num_same(spelling, text[start : start + len(spelling)]), name) for spelling, name in self.whole)


def _num_same(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next(
        (place for place, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its),
        min(len(one), len(other)),
    )


@lru_cache(maxsize=4)
def _keys_of_environment(variables: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[str, str], ...]:
    """Asked for with every text, so as bytes: to decode them all takes longer than to redact a
    tool's result."""
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
    if len(content) < MIN_KEY_CHARS or not _SAYS_KEY.search(name) or re.fullmatch(r"[\d.,:+-]+", content):
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
    """Of the person's tree: a stage works in a copy, which has none."""
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


@lru_cache(maxsize=16)
def _known(keys: tuple[tuple[str, str], ...]) -> tuple[_Spellings, ...]:
    """Longest spellings first, so that a key within another's spelling does not break it."""
    plain: dict[tuple[str, bool], dict[str, str]] = {}
    encoded: dict[str, dict[str, str]] = {}
    for name, value in keys:
        length = max(_LEAD, _num_of_kind(value) + _OWN) if _is_random(value) else len(value)
        for spelling in _spellings(value):
            lead = spelling[:length] if length < len(value) else spelling
            plain.setdefault((lead, length < len(value)), {}).setdefault(spelling, name)
        for spelling in _base64_spellings(value):
            lead = spelling[: 4 * length // 3] if length < len(value) else spelling
            encoded.setdefault(lead, {}).setdefault(spelling, name)
    found = [_Spellings(lead, _by_length(whole), is_enough) for (lead, is_enough), whole in plain.items()]
    found += [_Spellings(lead, _by_length(whole), lead not in whole, is_base64=True) for lead, whole in encoded.items()]
    return tuple(sorted(found, key=lambda one: (one.is_base64, -len(one.whole[0][0]), one.lead)))


def _by_length(whole: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(whole.items(), key=lambda item: (-len(item[0]), item)))


def _num_of_kind(value: str) -> int:
    """How many characters say what kind of key it is: `sk-proj-`, `github_pat_`."""
    kind = _KIND.match(value)
    return kind.end() if kind else 0


def _is_random(value: str) -> bool:
    is_address = "://" in value or value.startswith(("/", "~", "./"))
    return (
        bool(_RANDOM.fullmatch(value)) and not is_address and sum(map(str.isdigit, value)) > 2 and len(set(value)) >= 10
    )


def _spellings(value: str) -> list[str]:
    """As it stands, and as JSON (once and twice), URLs and HTML have it."""
    found = [value]
    for is_ascii in (True, False):
        escaped = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        found += [
            escaped,
            escaped.replace("/", "\\/"),
            json.dumps(escaped, ensure_ascii=is_ascii)[1:-1],
            repr(value)[1:-1],
        ]
    for quoted in (urllib.parse.quote(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)):
        found += [quoted, re.sub(r"%..", lambda code: code[0].lower(), quoted)]
    return list(dict.fromkeys([*found, html.escape(value), html.escape(value, quote=False)]))


def _base64_spellings(value: str) -> list[str]:
    """What base64 makes of it, whatever stands before and behind: of each of the three places where
    it can begin, the characters that are its own."""
    content, found = value.encode(), []
    for offset in range(3):
        code = base64.b64encode(b"\0" * offset + content).decode().rstrip("=")
        own = code[-(-offset * 8 // 6) : (offset + len(content)) * 8 // 6]
        found += [own, own.replace("+", "-").replace("/", "_")]
    return list(dict.fromkeys(found))


def _with_digit(found: re.Match[str]) -> str:
    """A word with a hyphen is no key: those of the kinds below have digits."""
    return found[0] if not any(map(str.isdigit, found["key"])) else found[0].replace(found["key"], "[key removed]")


def _basic(found: re.Match[str]) -> str:
    """Behind `Basic` stands base64 of `user:password`, or a word of a sentence."""
    try:
        is_login = b":" in base64.b64decode(found["key"] + "=" * (-len(found["key"]) % 4), validate=True)
    except (binascii.Error, ValueError):
        is_login = False
    return f"{found[1]}[key removed]" if is_login or found["header"] else found[0]


def _user_and_password(found: re.Match[str]) -> str:
    """Of a URL. What stands in manuals for a password is none."""
    return found[0] if _PLACEHOLDER.fullmatch(found["key"]) else f"{found[1]}[key removed]@"


# (what the text must hold for the pattern to be tried, pattern, replacement). Possessive
# quantifiers and what must stand before a match keep each linear: no character is looked at again
# from another start. None takes quotes or backslashes, so JSON stays JSON.
_KINDS: Sequence[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]]] = (
    (
        "PRIVATE KEY-----",
        re.compile(rf"-----BEGIN {_PEM}(?:[A-Za-z0-9+/=\s:,]|\\[nr])*+(?:-----END {_PEM})?"),
        "[key removed]",
    ),
    (
        "eyJ",
        re.compile(
            rf"(?<![{_WORDS}])eyJ[{_WORDS}]{{7,}}+"
            rf"\.[{_WORDS}]{{8,}}+\.[{_WORDS}]*+(?:\.[{_WORDS}]++){{0,2}}+"
        ),
        "[key removed]",
    ),
    ("sk-", re.compile(rf"(?<![{_WORDS}])(?P<key>sk-[{_WORDS}]{{16,}}+)"), _with_digit),
    ("k_", re.compile(r"(?<![A-Za-z0-9_])[sr]k_(?:live|test)_[A-Za-z0-9]{12,}+"), "[key removed]"),
    ("hf_", re.compile(r"(?<![A-Za-z0-9_])(?P<key>hf_[A-Za-z0-9]{20,}+)"), _with_digit),
    ("gh", re.compile(r"(?<![A-Za-z0-9_])gh[pousr]_[A-Za-z0-9]{16,}+"), "[key removed]"),
    ("github_pat_", re.compile(r"(?<![A-Za-z0-9_])github_pat_[A-Za-z0-9_]{16,}+"), "[key removed]"),
    ("glpat-", re.compile(rf"(?<![{_WORDS}])glpat-[{_WORDS}]{{16,}}+"), "[key removed]"),
    ("xox", re.compile(r"(?<![A-Za-z0-9_-])(?P<key>xox[a-z]-[A-Za-z0-9-]{10,}+)"), _with_digit),
    ("AKIA", re.compile(r"(?<![A-Za-z0-9])AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"), "[key removed]"),
    ("ASIA", re.compile(r"(?<![A-Za-z0-9])(?P<key>ASIA[A-Z0-9]{16})(?![A-Za-z0-9])"), _with_digit),
    ("AIza", re.compile(rf"(?<![{_WORDS}])AIza[{_WORDS}]{{35}}(?![{_WORDS}])"), "[key removed]"),
    ("earer", re.compile(r"(?<![A-Za-z])(?:B|b)earer[ \t]{1,4}(?P<key>[A-Za-z0-9._~+/=-]{8,}+)"), _with_digit),
    ("asic", re.compile(rf"({_HEADER}(?<![A-Za-z])[Bb]asic[ "
                        r"\t]{1,4})(?P<key>[A-Za-z0-9+/_-]{8,}+={0,2})"), _basic),
    ("//", re.compile(r"(?<=//)([^\s/:@\"'<>\\?#]{0,256}+:)(?P<key>[^\s/@\"'<>\\]{1,1024}+)@"), _user_and_password),
)  # fmt: skip
