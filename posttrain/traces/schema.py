"""SQL schema of the trace store.

Columns that filters read (`episodes`) are apart from those that a reader of one episode wants
(`bodies`): a million turns are 25 MB of the former, scanned in a moment, and ten times as much of
the latter. A task is stored once, by the hash of its content.
"""

SCHEMA_VERSION = 5  # a store of another version is refused, never migrated
APPLICATION_ID = int.from_bytes(b"pttr", "big")  # marks a SQLite file as a trace store
SCHEMA = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    stage TEXT NOT NULL,
    key TEXT NOT NULL,
    started_at REAL NOT NULL,  -- seconds since 1970
    settings TEXT NOT NULL  -- JSON: the sections world and agent
);
CREATE TABLE tasks (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,  -- of content
    task_id TEXT NOT NULL,
    cell TEXT NOT NULL,  -- its labels' values
    content TEXT NOT NULL  -- JSON
);
CREATE TABLE tools (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,  -- counts the run's episodes
    task INTEGER NOT NULL,
    step INTEGER,
    part TEXT NOT NULL,
    is_failed INTEGER NOT NULL,
    is_success INTEGER,
    stop_reason TEXT NOT NULL,
    reward REAL,
    advantage REAL,
    seed INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    num_turns INTEGER NOT NULL,
    num_tokens INTEGER NOT NULL,
    UNIQUE (run, number)
);
CREATE TABLE bodies (
    episode INTEGER PRIMARY KEY,
    messages BLOB NOT NULL,  -- zlib of OpenAI messages, without the task's opening ones where is_opening_left_out
    is_opening_left_out INTEGER NOT NULL,
    token_ids BLOB NOT NULL,  -- zlib of int32, little-endian as all arrays
    mask BLOB NOT NULL,  -- zlib of int8
    logprobs BLOB NOT NULL,  -- float32, one for each 1 of mask
    scores TEXT NOT NULL,
    failure TEXT NOT NULL,
    num_forks INTEGER NOT NULL,
    outcome TEXT  -- JSON; null: nobody graded it
);
CREATE TABLE turns (
    episode INTEGER NOT NULL,
    number INTEGER NOT NULL,
    num_read INTEGER NOT NULL,
    num_written INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    latency_s REAL NOT NULL,
    message_index INTEGER,  -- null: the context had no room for the message
    PRIMARY KEY (episode, number)
) WITHOUT ROWID;
CREATE TABLE calls (
    episode INTEGER NOT NULL,
    number INTEGER NOT NULL,  -- counts the episode's calls
    turn INTEGER NOT NULL,
    tool INTEGER NOT NULL,
    outcome TEXT,  -- null: never answered
    num_attempts INTEGER,
    latency_s REAL,
    call_id TEXT NOT NULL,
    PRIMARY KEY (episode, number)
) WITHOUT ROWID;
CREATE INDEX calls_by_tool ON calls (tool, episode, outcome);
"""
# Columns by table, without those that only one store knows: ids and references to ids.
RUN = "uid, stage, key, started_at, settings"
TASK = "digest, task_id, cell, content"
EPISODE = (
    "number, step, part, is_failed, is_success, stop_reason, reward, advantage, seed, policy_version, num_turns, "
    "num_tokens"
)
BODY = "messages, is_opening_left_out, token_ids, mask, logprobs, scores, failure, num_forks, outcome"
TURN = "number, num_read, num_written, policy_version, latency_s, message_index"
