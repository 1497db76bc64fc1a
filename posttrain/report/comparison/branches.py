"""Renders the dashboard's first page: the settings of all local branches beside a baseline, and a
table of the branches.

Figures, verdicts and curves are those of one comparison of all branches that are drawn, so a
verdict is corrected for all of them, and may be clearer where fewer are compared. The drawing needs
no script: places in it are shares of its width.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from urllib.parse import urlencode

from posttrain.evals.significance import LEVEL, Decision
from posttrain.pipeline.git import git
from posttrain.report.comparison.curves import drawn_charts
from posttrain.report.comparison.runs import Commit, read_commits, read_objects
from posttrain.report.comparison.settings import Setting, compare_settings
from posttrain.report.comparison.tables import knobs_and_code, verdict
from posttrain.report.html import rendered
from posttrain.report.run_reader import Evaluation, Measure, parse_object
from posttrain.report.table import percent, percent_range, points
from posttrain.runtime.control_chars import visible_line
from posttrain.runtime.exits import ConfigurationError

MAX_COMPARED = 100
_FIELDS = ("refname:lstrip=2", "objectname", "authorname", "committerdate:iso-strict", "contents:subject")
_TEMPLATE = Path(__file__).with_name("dashboard.html")
_RATES = ("strict_success_rate", "strict_ci_low", "strict_ci_high", "success_rate", "pass_hat_4")
_MAX_TICKS, _STEPS = 6, (1, 2, 5, 10, 20)  # of the scale, in percent
_CURVE_POINTS, _CURVE_HEIGHT = 40, 24  # an SVG 100 wide, stretched to the page


class Branch(NamedTuple):
    """A local branch's newest commit."""

    commit: Commit
    subject: str


def local_branches(root: Path) -> tuple[Branch, ...]:
    """The one with the newest commit first. Raises ConfigurationError where `root` is in no
    repository."""
    form = f"--format={'%00'.join(f'%({field})' for field in _FIELDS)}"
    text = git(root, "for-each-ref", "--sort=-committerdate", form, "refs/heads")
    # not splitlines: a name may hold what Unicode takes for a line's end
    rows = [line.split("\0") for line in text.split("\n") if line]
    return tuple(Branch(Commit(*fields), subject) for *fields, subject in rows)


@functools.lru_cache(maxsize=8)  # commits never change: a reload reads them again once a branch has moved
def branches_page(root: Path, branches: tuple[Branch, ...], baseline: str = "") -> str:
    """Render the HTML text. Without a name the baseline is main, or else the newest. Raises
    ConfigurationError for one that is no branch."""
    commits = {branch.commit.name: branch.commit for branch in branches}
    if baseline and baseline not in commits:
        raise ConfigurationError(f"there is no branch {baseline!r} to compare with: choose one on the page without it")
    name = baseline or ("main" if "main" in commits else next(iter(commits), ""))
    drawn = sorted(commits.values(), key=lambda commit: commit.name != name)[:MAX_COMPARED]
    settings = compare_settings(read_commits(root, drawn)) if drawn else []
    # of other tasks than the baseline's it does not belong on one scale
    shares = [None if one.problem and settings[0].success else one.strict_success for one in settings]
    rows = list(zip(settings, shares, map(_curve, settings), strict=True))
    words = [": ".join(filter(None, (in_words(one, settings[0]), reason(one, settings[0])))) for one in settings]
    verdicts = {run.name: text for one, text in zip(settings, words, strict=True) for run in one.runs}
    titles = [curve["title"] for _, _, curve in rows if curve]
    return rendered(
        _TEMPLATE,
        data={"branches": _listed(root, branches, verdicts), "baseline": name},
        title="Branches",
        rows=rows[:1] + sorted(rows[1:], key=lambda row: -row[1][0] if row[1] else 1),
        curve_title=max(titles, key=titles.count, default=""),  # of most rows; the others name theirs
        scale=_Scale([share for share in shares if share]),
        level=f"{100 * LEVEL:g} % interval",
        num_left_out=len(branches) - len(drawn),
        of_run=lambda run: fmean(run.outcomes(Measure.STRICT).values()),
        **{one.__name__: one for one in (in_words, reason, differences, link, percent, percent_range, points)},
    )


def in_words(setting: Setting, baseline: Setting) -> str:
    """`better`, `no difference shown: needs 3 more seeds`."""
    is_open = setting.difference is not None and setting.difference.decision in (Decision.TIED, Decision.NEEDS_MORE)
    word = "baseline" if setting is baseline else verdict(setting)
    return f"no difference shown: {word}" if is_open else word


def reason(setting: Setting, baseline: Setting) -> str:
    """What is missing or broken, first that which the figures come from."""
    found = [f"{run.name}: {text}" if len(setting.runs) > 1 else text for run in setting.runs for text in run.problems]
    found.sort(key=lambda text: "reports/evaluate/" not in text)
    texts = found[:2] + [f"{len(found) - 2} more"] * (len(found) > 2)
    if setting.strict_success is None:
        return f"no strict success: {'; '.join(texts) or setting.problem}"
    why = setting.problem if baseline.success or not setting.problem else "the baseline has no results"
    return "; ".join(filter(None, (why, *texts)))


def differences(setting: Setting) -> list[str]:
    """A text for each knob, and one for all code; of what cannot be read none."""
    (knobs, code), run = knobs_and_code(setting), setting.runs[0]
    return knobs * bool(run.knobs) + code * bool(run.stages)


def link(setting: Setting, baseline: Setting) -> str:
    """Address of the comparison with the baseline."""
    names = dict.fromkeys(run.name for one in (baseline, setting) for run in one.runs)
    return f"/compare?{urlencode([('name', name) for name in names][:MAX_COMPARED])}"


class _Scale:
    """Places of shares. `ticks` are in percent: of 61 to 97 % they are 60, 70, 80, 90, 100."""

    def __init__(self, shares: Sequence[tuple[float, float, float]]) -> None:
        bounds = [100 * bound for _, *interval in shares for bound in interval] or [0, 100]
        low, high = min(bounds), max(bounds)
        step = next(step for step in _STEPS if math.ceil(high / step) - math.floor(low / step) < _MAX_TICKS)
        self.ticks = range(math.floor(low / step) * step, math.ceil(high / step) * step + 1, step)

    def at(self, share: float) -> str:
        return self.width(share - self.ticks[0] / 100)

    def width(self, share: float) -> str:
        return f"{10000 * share / (self.ticks[-1] - self.ticks[0]):.2f}%"


def _curve(setting: Setting) -> dict[str, Any] | None:
    """The first metric of the training, as the points of an SVG: its `line`, the `band` over seeds;
    and the first and last value in words."""
    if (chart := next(drawn_charts([setting]), None)) is None:
        return None
    [curve] = chart["curves"]
    steps, mean, low, high = (_averaged(curve[name]) for name in ("steps", "mean", "low", "high"))
    bottom, top = (0.0, 1.0) if chart["is_share"] else (min(low or mean), max(high or mean))
    across, up = (steps[-1] - steps[0]) or 1, (top - bottom) or 1

    def drawn(values: Sequence[float]) -> list[str]:
        places = zip(steps, values, strict=False)  # of one seed there is no band
        return [f"{100 * (x - steps[0]) / across:.1f},{_CURVE_HEIGHT * (top - y) / up:.1f}" for x, y in places]

    ends = [percent(value) if chart["is_share"] else f"{value:.3g}" for value in (mean[0], mean[-1])]
    band = " ".join(drawn(high) + drawn(low)[::-1])
    return {"title": chart["title"], "line": " ".join(drawn(mean)), "band": band, "ends": " → ".join(ends)}


def _averaged(values: Sequence[float]) -> list[float]:
    """Means of as many neighbours as leave no more points than are seen."""
    size = -(-len(values) // _CURVE_POINTS) or 1
    return [fmean(values[at : at + size]) for at in range(0, len(values), size)]


def _listed(root: Path, branches: Sequence[Branch], verdicts: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of the table; the policy's rates are None where no evaluation can be read."""
    found = read_objects(root, [f"{commit.id}:./reports/evaluate/policy.json" for commit, _ in branches])
    return [
        {
            "name": commit.name,  # as it is: the page sends it back
            "shown": visible_line(commit.name),
            "author": visible_line(commit.author),
            "committed_at": commit.committed_at,
            "subject": visible_line(subject),
            "verdict": visible_line(verdicts.get(commit.name, "")),
            **_rates(evaluation.content if evaluation else b""),
        }
        for (commit, subject), evaluation in zip(branches, found, strict=True)
    ]


def _rates(content: bytes) -> dict[str, float | None]:
    try:
        found = parse_object(Evaluation, content)
    except (ValueError, RecursionError):
        return dict.fromkeys(_RATES)
    return {rate: getattr(found, rate) for rate in _RATES}
