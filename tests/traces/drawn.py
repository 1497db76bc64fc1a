"""Any trajectory at all, also one that no loop of ours would make: what is written and read again
must come back equal."""

import random
import struct

from posttrain.traces.values import TracedEpisode
from posttrain.types import ROLES, Delegated, Message, Outcome, StopReason, ToolCall, ToolRun, Trajectory, Turn
from tests.rollout.lock_world import lock_task

TEXTS = ("", "open", "价格 12.30 元", '{"code":"1', "a\x00b\n", "half a pair \ud83d", "\\ud83d", "0", "call_1")
TASK = lock_task()


class Draw(random.Random):
    texts = TEXTS

    def text(self) -> str:
        return self.choice(self.texts)

    def float32(self) -> float:
        return struct.unpack("f", struct.pack("f", -10 * self.random()))[0]

    def message(self) -> Message:
        calls = tuple(ToolCall(self.text(), self.text(), self.text()) for _ in range(self.randrange(3)))
        role = self.choice(["system", "user", "assistant", "tool"])
        return Message(role, self.text(), self.text() or None, calls, self.choice([None, self.text()]))

    def run(self) -> ToolRun:
        return ToolRun(
            self.text(),
            self.text(),
            self.choice(["ok", "error", "timeout", "failed"]),
            self.randrange(1, 4),
            self.random(),
        )

    def turn(self, num_messages: int) -> Turn:
        runs = tuple(self.run() for _ in range(self.randrange(3)))
        index = self.choice([None, self.randrange(num_messages)]) if num_messages else None
        return Turn(self.randrange(99), self.randrange(99), self.randrange(9), index, runs, self.random())

    def trajectory(self) -> Trajectory:
        opening = TASK.messages if self.randrange(2) else ()
        messages = (*opening, *(self.message() for _ in range(self.randrange(5))))
        mask = tuple(self.randrange(2) for _ in range(self.randrange(9)))
        num_windows = self.randrange(1, 4)
        return Trajectory(
            task_id=TASK.task_id,
            messages=messages,
            stop_reason=self.choice(list(StopReason)),
            seed=self.getrandbits(32),
            policy_version=self.randrange(99),
            token_ids=tuple(self.getrandbits(31) for _ in mask),
            mask=mask,
            logprobs=tuple(self.float32() if is_written else 0.0 for is_written in mask),
            scores={self.text(): self.random() for _ in range(self.randrange(3))},
            reward=self.choice([None, self.random()]),
            turns=tuple(self.turn(len(messages)) for _ in range(self.randrange(4))),
            window_starts=tuple(range(num_windows - 1)),
            window_roles=self.choice([(), tuple(self.choice(ROLES) for _ in range(num_windows))]),
            delegated=tuple(self.delegated() for _ in range(self.randrange(2))),
            num_forks=self.randrange(3),
            failure=self.text(),
            outcome=self.choice([None, self.outcome()]),
        )

    def delegated(self) -> Delegated:
        messages, turns = (self.message(),), (Turn(3, 4, 1, 0, (ToolRun("a", "b", "ok"),)),)
        return Delegated(messages, ({"type": "function", "function": {"name": self.text()}},), StopReason.DONE, turns)

    def outcome(self) -> Outcome:
        success = self.choice([True, False])
        return Outcome(
            success=success,
            strict_success=success and self.choice([True, False]),
            scores={self.text(): self.random() for _ in range(self.randrange(3))},
            reward=self.choice([None, self.gauss(0, 1)]),
            turn_scores=tuple(self.gauss(0, 1) for _ in range(self.randrange(3))),
            failure="" if success else self.text(),
            feedback=self.text(),
        )

    def traced(self) -> TracedEpisode:
        return TracedEpisode(
            trajectory=self.trajectory(),
            task=TASK,
            is_success=self.choice([None, True, False]),
            advantage=self.choice([None, self.gauss(0, 1)]),
            step=self.choice([None, self.randrange(99)]),
            part=self.choice(["", "greedy"]),
        )
