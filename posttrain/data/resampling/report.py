"""Counts of rows per cell before and after resampling, as JSON and as a bar chart (SVG)."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COLOURS = {"dropped": "#c8ccd1", "kept": "#4878a8", "added": "#e08a3c"}
INK = "#7a828a"  # readable on white and on near-black pages


@dataclass(frozen=True, slots=True)
class CellCounts:
    """Number of a cell's rows: validated, after the quality filter, after the coreset, and added by
    oversampling."""

    cell: str
    validated: int
    after_quality: int
    after_coreset: int
    added: int


def count_cells(
    validated: Sequence[str], after_quality: Sequence[str], after_coreset: Sequence[str], added: Sequence[str]
) -> list[CellCounts]:
    """One entry per validated cell, by name; each argument is the cells of all rows at that
    point."""
    counts = [Counter(cells) for cells in (validated, after_quality, after_coreset, added)]
    return [CellCounts(cell, *(count[cell] for count in counts)) for cell in sorted(counts[0])]


def cells_json(cells: Sequence[CellCounts]) -> dict[str, Mapping[str, int]]:
    """Counts by cell for summary.json; `after` is the training set."""
    return {
        counts.cell: {
            "validated": counts.validated,
            "after_quality": counts.after_quality,
            "after_coreset": counts.after_coreset,
            "after": counts.after_coreset + counts.added,
        }
        for counts in cells
    }


def draw_classes(cells: Sequence[CellCounts]) -> str:
    """An SVG, equal to the byte for equal counts, with bars per cell, the rarest at the bottom:
    kept and added rows, and in grey the validated ones."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    shown = sorted(cells, key=lambda counts: (counts.validated, counts.cell))
    settings = {
        "svg.hashsalt": "classes",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(
        {**matplotlib.rcParamsDefault, **settings, "axes.labelcolor": INK, "axes.edgecolor": INK}
    ):
        figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.26 * len(shown)), layout="constrained")
        _draw_bars(axes, shown)
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return drawing.getvalue()


def _draw_bars(axes: Any, cells: Sequence[CellCounts]) -> None:
    places = range(len(cells))
    axes.barh(
        [place + 0.22 for place in places],
        [counts.validated for counts in cells],
        height=0.3,
        color=COLOURS["dropped"],
        label="before",
    )
    kept = [counts.after_coreset for counts in cells]
    axes.barh([place - 0.12 for place in places], kept, height=0.38, color=COLOURS["kept"], label="after: kept")
    added = [counts.added for counts in cells]
    axes.barh(
        [place - 0.12 for place in places], added, left=kept, height=0.38, color=COLOURS["added"], label="after: added"
    )
    axes.set_yticks(list(places), [counts.cell for counts in cells], fontsize=8)
    axes.set_ylim(-0.6, len(cells) - 0.4)
    axes.set_xlabel("demonstrations")
    axes.legend(loc="lower right", frameon=False, fontsize=8, labelcolor=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
