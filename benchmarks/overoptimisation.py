"""Gold reward against KL where a policy learns from a reward model alone: `python -m
benchmarks.overoptimisation [--svg FILE]`, after `python -m flows.experiments
experiments/reward_model_only.yaml`.

Of every arm, as means over its seeds at each evaluation of dev: the KL to the SFT model in nats a
token, the reward that was learnt from, and the gold standard, which is strict success on dev tasks
by the world's own verdict. A policy that is hacked earns more while the gold standard falls
(arXiv 2210.10760).
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from posttrain.pipeline.git import git
from posttrain.report.comparison.runs import read_runs

NAME = "reward_model_only"
GOLD, LEARNT, KL = "dev_strict_success", "learnt_reward_mean", "kl"
WIDTH, HEIGHT = 640, 360
COLOURS = ("#444", "#1f6fa8", "#b3234f", "#2c8c4a", "#a66b00", "#6b4fa3")
Point = tuple[int, float, float | None, float]  # step, KL, learnt reward, gold


def arms(root: Path) -> dict[str, list[Point]]:
    """By arm its points in the order of the steps; those alone that all of its seeds have."""
    branches = git(root, "for-each-ref", "--format=%(refname:lstrip=2)", f"refs/heads/exp/{NAME}-*").split()
    by_arm: dict[str, list[Mapping[int, Mapping[str, float]]]] = {}
    for run in read_runs(root, branches):
        arm = re.sub(rf"^exp/{NAME}-(.+)-seed\d+$", r"\1", run.name)
        by_arm.setdefault(arm, []).append({line["step"]: line for line in run.curves["policy"] if GOLD in line})
    return {arm: _points(seeds) for arm, seeds in sorted(by_arm.items())}


def _points(seeds: Sequence[Mapping[int, Mapping[str, float]]]) -> list[Point]:
    steps = sorted(set.intersection(*map(set, seeds)))
    found = []
    for step in steps:
        lines = [one[step] for one in seeds]
        learnt = fmean(line[LEARNT] for line in lines) if all(LEARNT in line for line in lines) else None
        found.append((step, fmean(line[KL] for line in lines), learnt, fmean(line[GOLD] for line in lines)))
    return found


def table(found: Mapping[str, Sequence[Point]]) -> str:
    rows = ["| arm | step | KL | learnt reward | strict on dev |", "| --- | ---: | ---: | ---: | ---: |"]
    for arm, points in found.items():
        for step, kl, learnt, gold in points:
            rows.append(f"| {arm} | {step} | {kl:.3f} | {'' if learnt is None else f'{learnt:.3f}'} | {gold:.1%} |")
    return "\n".join(rows)


def svg(found: Mapping[str, Sequence[Point]]) -> str:
    """Gold against the root of KL, a line for each arm."""
    most = max(kl for points in found.values() for _, kl, _, _ in points) ** 0.5 or 1.0
    lines = []
    for number, (arm, points) in enumerate(found.items()):
        colour, y = COLOURS[number % len(COLOURS)], 20 + 16 * number
        path = " ".join(
            f"{40 + 580 * max(kl, 0) ** 0.5 / most:.1f},{320 - 300 * gold:.1f}" for _, kl, _, gold in points
        )
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="560" y="{y}" fill="{colour}" text-anchor="end">{arm}</text>')
    ticks = [f'<text x="36" y="{324 - 300 * share / 4}" text-anchor="end">{25 * share} %</text>' for share in range(5)]
    axis = f'<text x="620" y="345" text-anchor="end">square root of KL, to {most:.2f}</text>'
    frame = '<path d="M40 20V320H620" fill="none" stroke="#999"/>'
    style = 'font-family="sans-serif" font-size="12"'
    body = "".join([frame, *ticks, axis, *lines])
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>{body}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", type=Path, help="draw gold against KL into this file")
    given = parser.parse_args()
    found = arms(Path.cwd())
    print(table(found))
    if given.svg:
        given.svg.write_text(svg(found), encoding="utf-8")


if __name__ == "__main__":
    main()
