"""Keys are cut out of text in every spelling, other text stays as it is, and it takes time in
proportion to the text."""

import base64
import html
import json
import logging
import re
import subprocess
import sys
import time
import urllib.parse

import pytest

from posttrain.rollout.episodes import demonstrate
from posttrain.runtime.key_kinds import DISTINCT, NAMED, WORDLIKE
from posttrain.runtime.limits import clip
from posttrain.runtime.redaction import redact, redact_lines, redact_logs, redact_values, remember_keys
from posttrain.worlds.stocks.domain import StocksDomain
from tests import key_examples
from tests.key_examples import examples, kept, planted_in
from tests.limits import limits_of
from tests.worlds_of import stocks_params

RANDOM = "pk/Ab3+Ef6hIj9lMn2pQr5tUv8xZw1"
ODD = 'pä"ss/w+rd <9>\\x'
SPELLINGS = {
    "whole": str,
    "within a word": lambda key: f"x{key}y",
    "JSON": json.dumps,
    "JSON with Chinese": lambda key: json.dumps({"键": key}, ensure_ascii=False),
    "JSON in JSON": lambda key: json.dumps(json.dumps({"key": key})),
    "JSON of PHP": lambda key: json.dumps(key).replace("/", "\\/"),
    "URL": urllib.parse.quote,
    "URL's query": urllib.parse.quote_plus,
    "URL in lower case": lambda key: re.sub("%..", lambda code: code[0].lower(), urllib.parse.quote(key, safe="")),
    "HTML": html.escape,
    "repr": repr,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "login of four": lambda key: base64.b64encode(f"user:{key}".encode()).decode(),
    "login of three": lambda key: base64.b64encode(f"use:{key}more".encode()).decode(),
    "login of two": lambda key: base64.urlsafe_b64encode(f"us:{key}m".encode()).decode(),
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """A folder without `.env`."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("key", [RANDOM, ODD])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_variables_key_is_removed_in_every_spelling(monkeypatch, key, spelling):
    monkeypatch.setenv("SOME_API_KEY", key)
    written = SPELLINGS[spelling](key)
    removed = redact(f"a {written} b")
    assert "[key removed: SOME_API_KEY]" in removed
    assert removed.startswith("a ")
    assert removed.endswith(" b")
    left = removed.replace("[key removed: SOME_API_KEY]", "|")[2:-2]
    assert len(left) <= 18, "no more than what stood beside it, such as a login's name and JSON's quotes"


def test_of_a_random_key_a_part_is_known_from_twelve_characters_on(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", RANDOM)
    assert redact(f"key {RANDOM[:12]}… is wrong") == "key [key removed: SOME_TOKEN]… is wrong"
    assert redact(f"key {RANDOM[:20]}*** is wrong") == "key [key removed: SOME_TOKEN]*** is wrong"
    assert redact(f"key {RANDOM[:6]}*** is wrong") == f"key {RANDOM[:6]}*** is wrong"
    monkeypatch.setenv("SOME_TOKEN", "https://example.org/hook/1234567")
    assert redact("https://example.org/ is up") == "https://example.org/ is up", "an address begins as many do"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "A_KEY",
            "apikey",
            "HF_TOKEN",
            "MY_SECRET_2",
            "PGPASSWORD",
            "DB_PASS",
            "X_CREDENTIALS",
            "AUTH",
            "AUTHORIZATION",
        ),
        *("GITHUB_PAT", "PAT_2", "SESSION_COOKIE", "SLACK_WEBHOOK", "HookWebhookUrl"),
    ],
)
def test_a_variable_is_a_keys_by_its_name(monkeypatch, name):
    monkeypatch.setenv(name, "abc-4711-def")
    assert redact("the abc-4711-def") == f"the [key removed: {name}]"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "disabled-here"),
        ("GIT_AUTHOR_NAME", "Ada Lovelace"),
        ("KEYBOARD", "us-international"),
        ("HOME_DIRECTORY", "abc-4711-def"),
        ("A_KEY", "short-7"),
        ("A_PATH", "abc-4711-def"),
        ("PATTERN", "abc-4711-def"),
        ("AIRFLOW_CONN_ID", "host-a.example.org"),
        ("DB_CONN", "host-a.example.org:5432"),
        ("OPENAI_API_KEY", "anything"),
        ("TOKEN_LIMIT", "1000000000"),
        ("SSH_AUTH_SOCK", sys.executable),
    ],
)
def test_what_is_no_key_stays_whatever_its_name(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert redact(f"the {value} of it") == f"the {value} of it"


@pytest.mark.parametrize("name", ["SENTRY_DSN", "DB_CONN", "DATABASE_CONNECTION_STRING", "AZURE_CONNSTR"])
def test_an_address_with_a_login_is_a_key_by_its_name(monkeypatch, name):
    monkeypatch.setenv(name, "Server=db.example.org;Pwd=abc;Uid=me")
    assert redact("of Server=db.example.org;Pwd=abc;Uid=me") == f"of [key removed: {name}]"


@pytest.mark.parametrize("is_quoted", [False, True])
@pytest.mark.parametrize("spelling", key_examples.SPELLINGS)
def test_keys_of_all_kinds_are_removed_in_every_spelling(spelling, is_quoted):
    left = {}

    def spell(key):
        text = key_examples.SPELLINGS[spelling](key)
        return json.dumps({"out": text}) if is_quoted else text

    for (kind, key), twin in zip(examples(1).items(), examples(2).values(), strict=True):
        text = spell(key)
        assert kept(text, spell(twin), text), f"{kind}: nothing of it could be missed"
        if found := kept(text, spell(twin), redact(text)):
            left[kind] = found
    assert left == {}


@pytest.mark.parametrize("spelling", key_examples.SPELLINGS)
def test_what_json_held_keys_is_json_without_them(spelling):
    text = json.dumps({kind: key_examples.SPELLINGS[spelling](key) for kind, key in examples(1).items()})
    assert list(json.loads(redact(text))) == list(examples(1))


def test_a_key_is_found_whatever_stands_around_it():
    key = examples(1)["GitHub"]
    for before in ("n", r"\n", r"\\n", "%20", "%0A", "\x1b[32m", "[32m", "=", ":", '"', "https://", "://me:", "/", "m"):
        for behind in ("", "\n", r"\n", "%0A", "@host", "&b=1", "\x1b[0m", '"', "…"):
            assert key[4:] not in redact(f"a {before}{key}{behind} b"), (before, behind)


def test_keys_of_the_env_file_of_a_url_and_of_a_server_are_known(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text(
        "# mine\nexport A_KEY='abc-4711-def' # of May\nB_TOKEN=ghi-4712-jkl # of June\nPLACE=far-far-away\n"
    )
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:mno%2F4713-pqr@host/db")
    remember_keys({"SERVICE_SECRET": "stu-4714-vwx"})
    text = "abc-4711-def ghi-4712-jkl far-far-away mno/4713-pqr stu-4714-vwx"
    expected = (
        "[key removed: A_KEY] [key removed: B_TOKEN] far-far-away [key removed: DATABASE_URL] [key removed: "
        "SERVICE_SECRET]"
    )
    assert redact(text) == expected
    (tmp_path / ".env").unlink()
    assert redact("abc-4711-def") == "abc-4711-def"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key sk-proj-Ab3dEf6hIj9lMn2pQr5t.", "key [key removed]."),
        ('{"k":"sk-ant-api03-Zz9Yy8Xx7Ww6Vv5-_x"}', '{"k":"[key removed]"}'),
        ("hf_AbCdEfGhIj1234567890KlMnOpQrStUvWx", "[key removed]"),
        (
            "ghp_AbCdEfGhIj1234567890KlMnOpQrStUvWxYz and github_pat_11ABCDEFG0abcdefghij_klmn",
            "[key removed] and [key removed]",
        ),
        ("xoxb-123456789012-abcdefABCDEF", "[key removed]"),
        ("AKIAIOSFODNN7EXAMPLE", "[key removed]"),
        ("Authorization: Bearer abc.def-123~456", "Authorization: Bearer [key removed]"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic [key removed]"),
        ('"Authorization": "Basic AAAABBBBCCCC"', '"Authorization": "Basic [key removed]"'),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4", "[key removed]"),
        ("git clone https://me:hunter2@example.org/x.git", "git clone https://me:[key removed]@example.org/x.git"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----\nnext", "[key removed]\nnext"),
    ],
)
def test_keys_of_well_known_kinds_are_removed_whosoever_they_are(text, expected):
    assert redact(text) == expected
    assert redact(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Bearer authentication and Basic information, basic calculation",
        "sk-learn-estimator-text-repr-fallback, hf_transfer, risk-sk-adjusted-return-2024-report",
        "http://user:password@host:port and https://example.org:8080/@me:you",
        "600519.SH 00700.HK 12,345.67 AKIA and eyJ and xox and ghost_writer",
        "// see a@b.c: it is https://example.org/a:b",
    ],
)
def test_other_text_stays(text):
    assert redact(text) == text


def test_nothing_is_altered_in_what_the_stock_world_says():
    domain = StocksDomain(stocks_params(seed=1))
    rows = demonstrate(
        domain, domain.tasks("sft", 60), limits=limits_of(8, 100, 1000), seed=1, is_flawless=True, reasoning_frac=0.3
    )
    texts = [
        json.dumps([message.to_openai() for message in row.trajectory.messages], ensure_ascii=False) for row in rows
    ]
    assert sum(map(len, texts)) > 30_000
    assert list(map(redact, texts)) == texts


def test_nothing_is_altered_in_docs_and_reports(repository):
    tracked = ["git", "ls-files", "-z", "docs", "reports", "infra", "README.md"]
    names = subprocess.run(tracked, cwd=repository, capture_output=True, text=True, check=True).stdout.split("\0")
    texts = {
        name: (repository / name).read_text(encoding="utf-8")
        for name in names
        if name.endswith((".md", ".html", ".json", ".jsonl", ".svg", ".yaml", ".csv"))
    }
    assert sum(map(len, texts.values())) > 1_000_000
    assert [name for name, text in texts.items() if redact(text) != text] == []


def test_nothing_is_altered_in_real_trajectories_and_functions(shared_data, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", RANDOM)
    files = list(shared_data.rglob("*.json"))
    assert len(files) > 5
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert redact(text) == text, path


def test_a_key_in_base64_without_its_padding_may_end_an_escaped_text():
    for kind, key in examples(1).items():
        for lead in ("", "a", "ab"):
            code = base64.b64encode(f"{lead} {key}".encode()).decode().rstrip("=")
            for cut in range(4):
                text = "a\\n" + code[: len(code) - cut]
                assert planted_in(redact(text)) == set(), f"{kind}: {text}"


@pytest.mark.parametrize(
    "part",
    [
        *(
            "a",
            "sk-",
            "eyJ",
            "eyJ.aaaaaaaa.",
            "//",
            "//a:",
            "Bearer ",
            "Basic ",
            "-----BEGIN PRIVATE KEY-----",
            RANDOM[:11],
        ),
        *(
            "\\",
            r"\\\n",
            "%25",
            "&amp;amp;",
            "=3D",
            "=\nA",
            "\x1b[",
            "YWFhYWFh",
            "61",
            "SG.aaaaaaaaaaaaaaaaaaaaaa.",
            "1//0",
        ),
        *(
            "bearer+abcdefgh1",
            "api-key:'",
            "-----BEGIN PRIVATE KEY-----\nab- - ",
            "MAAAAAAAAAAAAAAAAAAAAAAA.",
            "//a:b1@",
        ),
    ],
)
def test_a_megabyte_of_anything_is_read_in_seconds(monkeypatch, part):
    """Half a second as a rule. A pattern that takes the square of the text would take hours."""
    monkeypatch.setenv("SOME_API_KEY", RANDOM)
    start = time.process_time()
    redact(part * (1_000_000 // len(part)))
    assert time.process_time() - start < 60


def test_a_kind_says_where_it_is_described():
    kinds = [*DISTINCT, *WORDLIKE, *NAMED]
    assert len({kind.name for kind in kinds}) == len(kinds) > 90
    assert all(re.fullmatch(r"[a-z0-9.-]+\.[a-z]{2,4}(/[A-Za-z0-9_./-]+)?", kind.source) for kind in kinds)


def test_of_a_private_key_no_line_is_left_where_lines_come_one_by_one():
    block = examples(1)["private key"].splitlines()
    for prefix in ("", "[rank 1] ", "2026-11-27T02:06:52Z stderr F "):
        lines = ["before", *(prefix + line for line in block), "step 3 of 9", "loss 0.5"]
        assert next(redact_lines(lines)) == "before"
        assert list(redact_lines(lines))[-2:] == ["step 3 of 9", "loss 0.5"]
        shown = "\n".join(redact_lines(lines))
        assert not [line for line in block if line[8:24] in shown]
        broken = [*lines[:3], "step 3 of 9", "loss 0.5"]
        assert list(redact_lines(broken))[-1] == "loss 0.5", "a key without its last line ends, too"


def test_values_of_json_are_redacted_names_and_all(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", RANDOM)
    assert redact_values({RANDOM: [1, None, True, (RANDOM, 0.5)]}) == {
        "[key removed: SOME_API_KEY]": [1, None, True, ["[key removed: SOME_API_KEY]", 0.5]]
    }


def test_what_is_cut_says_how_long_it_was_and_no_key_is_cut_in_half(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", RANDOM)
    assert clip("x" * 10, 10) == "x" * 10
    assert clip("x" * 11, 10) == "xxxxxxxxxx… [1 of 11 characters cut]"
    for before in range(30):
        for behind in (0, 100, 200_000):
            cut = clip("x" * before + RANDOM + "y" * behind, 40)
            assert RANDOM[:5] not in cut
            assert len(cut) < 100
    assert clip("a\ud800b", 10) == "a?b", "or no file could hold it"
    keys = clip(" ".join([f"sk-{index:030}" for index in range(100_000)]), 1000)
    assert "sk-" not in keys, "also where removing shortens what was looked at"


def test_logs_and_uncaught_exceptions_are_printed_without_keys(monkeypatch, tmp_path):
    program = (
        "import logging, os, threading\nfrom posttrain.runtime.redaction import "
        "redact_uncaught\nredact_uncaught()\nredact_uncaught()\n"
        "key = os.environ['SOME_API_KEY']\n"
        "def fail():\n    try:\n        raise ValueError(f'inner {key}')\n"
        "    except ValueError as error:\n        raise RuntimeError('outer') from error\n"
        "logging.getLogger('a.b').warning('with %s', key)\n"
        "try:\n    fail()\nexcept RuntimeError:\n    logging.getLogger('a.b').exception('caught')\n"
        "thread = threading.Thread(target=fail)\nthread.start()\nthread.join()\nfail()\n"
    )
    environment = {"SOME_API_KEY": RANDOM, "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert RANDOM[:10] not in done.stdout + done.stderr
    assert done.stderr.count("ValueError: inner [key removed: SOME_API_KEY]") == 3
    assert done.stderr.count("RuntimeError: outer") == 3
    assert "with [key removed: SOME_API_KEY]\n" in done.stderr


def test_a_log_record_without_keys_is_left_to_its_formatter(monkeypatch, caplog):
    before = logging.getLogRecordFactory()
    try:
        redact_logs()
        logging.getLogger("a").warning("plain %s", "text")
        assert caplog.records[-1].args == ("text",)
    finally:
        logging.setLogRecordFactory(before)
