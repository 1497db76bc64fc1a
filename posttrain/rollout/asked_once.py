"""Questions to an endpoint, each answered once: an answer is kept by the content of its request, so
a stage that was killed, and one that runs again, pay for nothing twice."""

import asyncio
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.rollout.engines.protocol import EngineFailed
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.runtime.state import private_folder
from posttrain.types import Message


class AskedOnce:
    """Asks `policy` and keeps the answers in `folder`. `about` is whatever else an answer depends
    on: the model and its temperature."""

    def __init__(self, policy: OpenAiPolicy, folder: Path, *, about: str) -> None:
        self._policy, self._about = policy, about
        self._kept = private_folder(folder) / "answers.db"
        with self._answers() as database:
            database.execute("create table if not exists answers (request text primary key, answer text)")

    def answers(self, instructions: str, requests: Sequence[str], *, sample: int = 0) -> list[str]:
        """An answer for each request, "" where the endpoint gave none. Another `sample` is another
        answer."""
        about = f"{self._about}{sample}\n{instructions}"
        keys = [hashlib.sha256(f"{about}\n{one}".encode()).hexdigest() for one in requests]
        with self._answers() as database:
            told = {key: database.execute("select answer from answers where request = ?", (key,)) for key in keys}
            kept = {key: row[0] for key, rows in told.items() if (row := rows.fetchone())}
        missing = {key: request for key, request in zip(keys, requests, strict=True) if key not in kept}
        kept |= asyncio.run(self._ask_all(instructions, missing, sample)) if missing else {}
        return [kept.get(key, "") for key in keys]

    async def _ask_all(self, instructions: str, requests: Mapping[str, str], sample: int) -> dict[str, str]:
        answers: dict[str, str] = {}

        async def ask(key: str, request: str) -> None:
            messages = [Message("system", instructions), Message("user", request)]
            with contextlib.suppress(EngineFailed):
                reply = await self._policy.ask(messages, seed=sample)
                if reply.message is not None:
                    answers[key] = reply.message.content
                    with self._answers() as database:
                        database.execute("insert or replace into answers values (?, ?)", (key, answers[key]))

        await asyncio.gather(*(ask(*one) for one in requests.items()))
        return answers

    @contextlib.contextmanager
    def _answers(self) -> Any:
        with contextlib.closing(sqlite3.connect(self._kept, timeout=60)) as database, database:
            yield database


def object_in(answer: str) -> dict[str, Any]:
    """The JSON object of an answer, which may stand in a fence or behind words; empty for none."""
    start, end = answer.find("{"), answer.rfind("}")
    try:
        found = json.loads(answer[start : end + 1])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
