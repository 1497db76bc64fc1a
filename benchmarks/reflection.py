"""Measures retries of failed episodes: `python -m benchmarks.reflection [--tasks 320]`.

The SFT model plays rl tasks; what failed is played once more: `again` from the question alone, or
behind a reflection that the policy writes itself (`own`), or one that a script writes: the same
words for every failure (`empty`), words that tell the mistake by its class (`told`), and the side
that was meant in the words of the world's own user (`known`). A line of JSON for each: the share of
failures that it turned with its interval at 95 %, that share less `again`'s, and the tokens written
for a turned one.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.config.params import load_params
from posttrain.evals.significance import difference_of_shares, share_interval
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec, load_model
from posttrain.rollout.episode_sampler import ScoredWorld, Stream, episode_seeds
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.rollout.reflection import RetryDomain, RetryTask, reflect_and_retry
from posttrain.types import Message, ScoredEpisode, Task, Trajectory
from posttrain.worlds.stocks.phrasing import REPLIES

PROMPT = "That was not right. Say what went wrong. Then try again."
ARMS = ("again", "own", "empty", "told", "known")
SIDES = {"a": ("a mainland", "A-share"), "hk": ("a Hong Kong", "Hong Kong"), "both": ("a double", "right")}
TOLD = {
    "wrong_tool": "I called a tool that this question does not need, or not the one that it needs.",
    "wrong_value": "I stated another value than the tool had given.",
    "bad_json": "My call was no valid JSON.",
    "bad_arguments": "I called the right tool with wrong arguments.",
    "no_answer": "I ended without an answer.",
    "too_many_turns": "I took too many turns.",
    "repeated_confirmation": "I asked the same question twice.",
}


class Saying:
    """Writes one text, whatever was said before."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reply(self, _messages: Sequence[Message]) -> Message:
        return Message("assistant", self._text)


def reflection(arm: str, task: Task, failure: str) -> str:
    """What a script writes that knows the failure's class."""
    if arm == "empty":
        return "I try again."
    language, side = task.labels["language"], task.labels["market"]
    if failure not in ("wrong_market", "market_flip") or side not in SIDES:
        return TOLD.get(failure, "I did not reach the goal.")
    if arm == "known" and (language, side) in REPLIES:
        return REPLIES[language, side][0]
    listing, market = SIDES[side]
    return f"I searched the wrong market: this is {listing} company. I call the tools of the {market} market."


def measure(world: ScoredWorld, model: Any, codec: ChatCodec, *, num: int, temperature: float, seed: int) -> None:
    """Plays `num` rl tasks and prints a line for each arm."""
    domain = RetryDomain(world.domain)
    sampler = replace(world, domain=domain).sampler(model, codec, temperature=temperature)
    tasks = world.domain.tasks("rl", num)
    played = sampler.sample(tasks, episode_seeds(Stream.MEASUREMENT, seed, count=num))
    failed = [(task, one) for task, one in zip(tasks, played, strict=True) if not one.is_success]
    if not failed:
        raise SystemExit(f"all {num} episodes succeeded: nothing is to be tried again")
    classes = {task.task_id: one.outcome.failure for task, one in failed if one.outcome is not None}
    own_tokens = sum(sum(one.mask) for one in played)
    print(json.dumps({"played": num, "failed": len(failed), "tokens": own_tokens, **Counter(classes.values())}))

    def play(own: Sequence[Task], arm: str) -> list[ScoredEpisode]:
        is_reflection = any(isinstance(task, RetryTask) and task.is_reflection for task in own)
        seeds = episode_seeds(Stream.MEASUREMENT, seed, 1 + is_reflection, count=len(own))
        if not is_reflection or arm == "own":
            return [ScoredEpisode(one) for one in sampler.sample(own, seeds)]
        script = ScriptedPolicy(lambda task, _: Saying(reflection(arm, task, classes[task.task_id])))
        found = run_episodes(script, own, domain=domain, limits=world.limits, seeds=seeds)
        return [ScoredEpisode(one) for one in found]

    again: list[bool] = []
    for arm in ARMS:
        reflections: Sequence[ScoredEpisode] = ()
        if arm == "again":
            retries: Sequence[ScoredEpisode] = play([task for task, _ in failed], arm)
        else:
            reflections, retries = reflect_and_retry(lambda own, arm=arm: play(own, arm), failed, PROMPT)
        turned = [one.is_success for one in retries]
        again = again or turned
        tokens = sum(sum(one.trajectory.mask) for one in (*reflections, *retries))
        print(json.dumps(row(arm, turned, again, tokens, [one.trajectory for one in retries])), flush=True)


def row(
    arm: str, turned: Sequence[bool], again: Sequence[bool], tokens: int, retries: Sequence[Trajectory]
) -> dict[str, Any]:
    failures = Counter(one.outcome.failure for one in retries if one.outcome is not None and not one.is_success)
    return {
        "arm": arm,
        "turned": round(sum(turned) / len(turned), 3),
        "interval": [round(one, 3) for one in share_interval(sum(turned), len(turned))],
        "less_again": [round(one, 3) for one in difference_of_shares(again, turned)],
        "tokens": tokens,
        "tokens_per_turned": round(tokens / max(sum(turned), 1)),
        "failures": dict(failures.most_common(4)),
    }


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.reflection", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("data/models/sft"))
    parser.add_argument("--tasks", type=int, default=320)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    params = load_params(Path("params.yaml"))
    world = ScoredWorld.of(params.world, params.reward, params.agent)
    model, codec = load_model(given.model).eval(), load_codec(given.model)
    measure(world, model, codec, num=given.tasks, temperature=given.temperature, seed=given.seed)


if __name__ == "__main__":
    main()
