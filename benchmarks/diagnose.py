"""Tells whether a model from scratch lacks a skill or a preference, measured on dev and rl tasks,
so that nothing is ever chosen on test.

Two tables. How exactly it copies: on flawless demonstrations of the tasks, teacher-forced, the
share of arguments and of quoted values of which every token is the likeliest one. And its greedy
success with the failures by class. GRPO turns round what a model prefers (`wrong_market`,
`wrong_tool`) and spoils further what it cannot do (`wrong_value`, `bad_arguments`), so look here
before a longer run. `python -m benchmarks.diagnose [MODEL] [--tasks N]`
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.config.params import Params, load_params
from posttrain.data.schemas import read_tasks
from posttrain.models.codec import TokenRow
from posttrain.models.loading import load_codec, load_model
from posttrain.rewards.total import load_reward
from posttrain.rollout.demonstrations import demonstrate
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.types import Task
from posttrain.worlds.catalog import make_domain, score_names

TASKS = Path("data/raw/tasks.parquet")
_CALL = re.compile(r'"arguments":(\{[^{}]*\})\}</tool_call>')
_QUOTE = re.compile(r"(?:<\|assistant\|>|\n)(\{[^{}]*\})(?=\n)")
_VALUE = re.compile(r'"(\w+)":(?:"([^"]*)"|(-?[\d.]+))')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="data/models/sft")
    parser.add_argument("--tasks", type=int, default=512)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    params = load_params()
    tasks = [*read_tasks(TASKS, "dev"), *read_tasks(TASKS, "rl")][: chosen.tasks]
    model, codec = load_model(Path(chosen.model), dtype=params.model.dtype), load_codec(Path(chosen.model))
    _print_copying(model, codec, params, tasks)
    _print_failures(model, codec, params, tasks)


def copied_spans(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Every value that the agent takes from elsewhere, in the text of a whole episode: what it is,
    and from which character to which it stands.

    `"arguments":{"name":"松鹤"}}</tool_call>` gives `call name` and the place of 松鹤; a line
    `{"open":12.5}` of a final message `quoted open`.
    """
    for kind, pattern in (("call", _CALL), ("quoted", _QUOTE)):
        for found in pattern.finditer(text):
            for value in _VALUE.finditer(found[1]):
                group = 2 if value[2] is not None else 3
                start, end = value.span(group)
                yield f"{kind} {value[1]}", (found.start(1) + start, found.start(1) + end)


def _print_copying(model: Any, codec: Any, params: Params, tasks: Sequence[Task]) -> None:
    domain = make_domain(params.world)
    rows = demonstrate(domain, tasks, limits=params.agent, seed=1, is_flawless=True, reasoning_frac=0.0)
    counts: dict[str, list[bool]] = defaultdict(list)
    for row in codec.encode_rows((row.trajectory.messages, row.tools) for row in rows):
        for name, is_exact in _exact(model, codec.tokenizer, row):
            counts[name].append(is_exact)
    print(f"{'copied':24} {'exact':>7} {'of':>6}")
    for name, exact in sorted(counts.items()):
        print(f"{name:24} {sum(exact) / len(exact):7.1%} {len(exact):6}")


def _exact(model: Any, tokenizer: Any, row: TokenRow) -> Iterator[tuple[str, bool]]:
    text = tokenizer.decode(row.input_ids)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if encoded["input_ids"] != list(row.input_ids):
        raise ValueError(
            f"the tokens of an episode are not those of its text, so a value's place is unknown: {text[:200]!r}"
        )
    with torch.no_grad():
        likeliest = model(input_ids=torch.tensor([row.input_ids])).logits[0].argmax(-1).tolist()
    for name, (start, end) in copied_spans(text):
        places = [
            place for place, (left, right) in enumerate(encoded["offset_mapping"]) if start <= left and right <= end
        ]
        yield name, all(likeliest[place - 1] == row.input_ids[place] for place in places)


def _print_failures(model: Any, codec: Any, params: Params, tasks: Sequence[Task]) -> None:
    domain = make_domain(params.world)
    sampler = EpisodeSampler(
        model,
        codec,
        domain=domain,
        reward=load_reward(params.reward, score_names(domain)),
        limits=params.agent,
        temperature=0.0,
    )
    outcomes = [
        played.outcome for played in sampler.sample(tasks, episode_seeds(Stream.MEASUREMENT, 1, count=len(tasks)))
    ]
    failures = [None if outcome is None else outcome.failure for outcome in outcomes]
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for failure, task in zip(failures, tasks, strict=True):
        for cell in (*(f"{label} {value}" for label, value in task.labels.items()), "all"):
            by_kind[cell].append(failure == "")
    print(f"\n{'greedy success':24} {'rate':>7} {'of':>6}")
    for cell, successes in by_kind.items():
        print(f"{cell:24} {sum(successes) / len(successes):7.1%} {len(successes):6}")
    print("failures: " + json.dumps(dict(Counter(filter(None, failures)).most_common())))


if __name__ == "__main__":
    main()
