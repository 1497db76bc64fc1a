"""Keys drawn from the expressions of `key_kinds.py`, and the spellings in which programs quote
one."""

import base64
import functools
import html
import json
import os
import quopri
import random
import re
import string
import urllib.parse
from collections.abc import Callable, Mapping
from re import _parser  # type: ignore[attr-defined]  # the only reader of expressions there is

import yaml

from posttrain.runtime.key_kinds import DISTINCT, NAMED, WORDLIKE

LONGER = 12  # than an open repetition asks for: eight random characters are a word's, too
_ALL = string.ascii_letters + string.digits


@functools.cache
def examples(seed: int) -> Mapping[str, str]:
    """A key for each kind by its name, with the words that tell it. Keys of two seeds are equally
    long and differ in all that is random."""
    rng, sizes = random.Random(seed), random.Random(0)
    drawn = {kind.name: _drawn(kind.pattern, rng, sizes) for kind in (*DISTINCT, *WORDLIKE)}
    drawn |= {kind.name: kind.sign + _drawn(kind.pattern, rng, sizes) for kind in NAMED}
    login = "".join(rng.choices(_ALL, k=18))
    block = "\n".join("".join(rng.choices(_ALL, k=64)) for _ in range(4))
    return drawn | {
        "HTTP basic": f"basic {base64.b64encode(f'me:{login}'.encode()).decode()}",
        "password of an address": f"//me:{login}@",
        "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{block}\n-----END RSA PRIVATE KEY-----",
    }


def _drawn(pattern: str, rng: random.Random, sizes: random.Random) -> str:
    parsed, state = _parser.parse(pattern), sizes.getstate()
    while True:
        sizes.setstate(state)
        text = "".join(_of(item, rng, sizes) for item in parsed)
        if any(map(str.isdigit, text)):
            return text


def _of(item: tuple[object, object], rng: random.Random, sizes: random.Random) -> str:
    """A text that one item of a parsed expression matches."""
    name, value = str(item[0]), item[1]
    if name == "LITERAL":
        return chr(value)
    if name == "IN":
        allowed = set()
        for kind, code in value:
            allowed |= {
                "LITERAL": lambda code=code: {chr(code)},
                "RANGE": lambda code=code: set(map(chr, range(code[0], code[1] + 1))),
                "CATEGORY": lambda code=code: set(string.digits if "DIGIT" in str(code) else string.whitespace),
                "NEGATE": set,
            }[str(kind)]()
        is_negated = str(value[0][0]) == "NEGATE"
        letters = sorted(set(_ALL) - allowed if is_negated else allowed & set(_ALL) or allowed)
        return (rng if set(letters) & set(_ALL) else sizes).choice(letters)
    if name in ("MAX_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, items = value
        is_random = str(items[0][0]) == "IN" and least >= 8
        count = min(most, least + LONGER) if is_random else sizes.randint(least, min(most, max(least, 1)))
        return "".join(_of(one, rng, sizes) for _ in range(count) for one in items)
    if name == "SUBPATTERN":
        return "".join(_of(one, rng, sizes) for one in value[-1])
    if name == "BRANCH":
        return "".join(_of(one, rng, sizes) for one in sizes.choice(value[1]))
    assert name == "ASSERT_NOT", f"the tests cannot draw a key from an expression with {name}"
    return ""


def _each(form: str) -> Callable[[str], str]:
    return lambda key: "".join(form.format(ord(letter), letter) for letter in key)


def _odd(form: str) -> Callable[[str], str]:
    return lambda key: re.sub(r"[^A-Za-z0-9]", lambda found: form.format(ord(found[0])), key)


def _coloured(key: str) -> str:
    return f"\x1b[1;31m{key[:9]}\x1b[0m\x1b[4m{key[9:]}\x1b[0m"


SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "plain": lambda key: f"the key\n{key}\nis wrong",
    "assigned": lambda key: f"export A={key}; true",
    "line of a log": lambda key: f"2026-11-27T02:06:52.113Z stdout F {key}",
    "JSON": lambda key: json.dumps({"out": key}),
    "JSON behind a newline": lambda key: json.dumps({"out": f"a\n{key}"}),
    "JSON in JSON behind a tab": lambda key: json.dumps(json.dumps({"out": f"a\t{key}\n"})),
    "JSON three times": lambda key: json.dumps(json.dumps(json.dumps([f"\r\n{key}"]))),
    "JSON of PHP": lambda key: json.dumps({"out": f"a\n{key}"}).replace("/", "\\/"),
    "unicode escapes": _odd("\\u{:04x}"),
    "unicode escapes throughout, in JSON": lambda key: json.dumps({"out": _each("\\u{:04X}")(key)}),
    "bytes": lambda key: repr(b"\xe4\n" + key.encode()),
    "hexadecimal escapes": _each("\\x{:02x}"),
    "octal escapes": _odd("\\{:03o}"),
    "URL's user": lambda key: f"https://{urllib.parse.quote(key, safe='')}@example.org/",
    "URL's query": lambda key: f"https://example.org/?q=1&key={urllib.parse.quote(key, safe='')}&b=2",
    "form": lambda key: urllib.parse.urlencode({"a": f"\n{key}"}),
    "URL throughout, in lower case": _each("%{:02x}"),
    "URL in a URL": lambda key: urllib.parse.quote(urllib.parse.quote(f" {key}", safe=""), safe=""),
    "HTML": lambda key: html.escape(f'<a title="{key}">'),
    "HTML's numbers": _odd("&#{};"),
    "HTML's hexadecimal numbers, in JSON": lambda key: json.dumps(f"\n{_each('&#x{:x};')(key)}"),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a login": lambda key: f"Basic {base64.b64encode(f'use:{key}'.encode()).decode()}",
    "base64 of URLs": lambda key: f"?state={base64.urlsafe_b64encode(json.dumps({'a': key}).encode()).decode()}",
    "base64 twice": lambda key: base64.b64encode(base64.b64encode(f'{{"auth":"{key}"}}'.encode())).decode(),
    "base64 in JSON behind a newline": lambda key: json.dumps(f"a\n{base64.b64encode(f'x {key}'.encode()).decode()}"),
    "hexadecimal": lambda key: key.encode().hex(),
    "coloured": _coloured,
    "coloured, in JSON": lambda key: json.dumps(_coloured(key)),
    "coloured, as escapes of a shell": lambda key: f"\\033[31m{key}\\e[0m",
    "coloured, as a pager shows it": lambda key: f"^[[01;31m^[[K{key}^[[m",
    "MIME": lambda key: quopri.encodestring(f"a=b {key}".encode()).decode(),
    "continued lines": lambda key: f"curl -H {key[:20]}\\\n    {key[20:]}",
    "YAML": lambda key: yaml.safe_dump({"out": f"ä\t{'long ' * 12}\n{key}"}),
}


def kept(text: str, twin: str, shown: str) -> list[str]:
    """Parts of the key in `text` that `shown` still has, 8 or 24 characters at a time: of those
    that differ in `twin`, which was written in the same way with another key."""
    windows = [slice(start, start + width) for width in (8, 24) for start in range(len(text) - width + 1)]
    own = {text[one] for one in windows if _is_own(text[one], twin[one])}
    return [part for part in own if part in shown and part not in twin]


def _is_own(text: str, twin: str) -> bool:
    return sum(map(str.__ne__, text, twin)) >= 4


@functools.cache
def planted(source: str, num_spellings: int = 2, *, at_most: int = 34) -> str:
    """A key of every kind in some spellings, in an order of the source's own.

    `PLANTED_SPELLINGS=12 pytest tests/test_planted_keys.py` plants as many in every source that can
    hold them.
    """
    rng = random.Random(source)
    num_spellings = min(at_most, max(num_spellings, int(os.environ.get("PLANTED_SPELLINGS", "0"))))
    texts = [
        SPELLINGS[name](key) for name in rng.sample(list(SPELLINGS), num_spellings) for key in examples(1).values()
    ]
    return "\n\n".join(rng.sample(texts, len(texts)))


@functools.cache
def _traces() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The texts that tell that a planted key is left, with its kind and spelling: a word of it, and
    of a spelling without words eight characters."""
    words, parts = {}, {}
    for spelling, spell in SPELLINGS.items():
        for (kind, key), twin in zip(examples(1).items(), examples(2).values(), strict=True):
            text, other = spell(key), spell(twin)
            own = set(re.findall(_WORD, _bare(text))) - set(re.findall(_WORD, _bare(other)))
            words |= dict.fromkeys(own, f"{kind}: {spelling}")
            if not own:
                middle = len(text) * 2 // 3
                parts[_bare(text[middle : middle + 24])] = f"{kind}: {spelling}"
    return words, parts


_WORD = "[A-Za-z0-9]{8,}"


def _bare(text: str) -> str:
    """However often JSON has quoted it."""
    return re.sub(r"\\+[nrt]", " ", text).replace("\\", "")


def planted_in(text: str) -> set[str]:
    """The kinds and spellings of the planted keys that a text holds."""
    words, parts = _traces()
    bare = _bare(text)
    return {words[word] for word in set(re.findall(_WORD, bare)) & words.keys()} | {
        name for part, name in parts.items() if part in bare
    }
