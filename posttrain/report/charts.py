"""Charts as inline SVG, drawn by hand: the same numbers give the same bytes, and the page's own
colours reach them, light or dark.

matplotlib is not used here: its SVG brings fonts, ids and colours of its own, none of which follow
the reader's theme. Coordinates are in the units of the viewBox and rounded to 0.1. A series is told
by its colour class (`c0` … `c4`) and by its dashes, so that it survives a printer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 12, 36
NUM_STYLES = 5


@dataclass(frozen=True, slots=True)
class Series:
    """One line: `points` are (x, y) with x ascending; none of them may be NaN. `style` picks colour
    and dashes, 0 … 4."""

    label: str
    points: Sequence[tuple[float, float]]
    style: int = 0


@dataclass(frozen=True, slots=True)
class Axis:
    """A straight scale, or with `is_log` one of equal ratios. `percent` writes 0.25 as 25 %;
    `is_whole` has ticks at whole numbers only."""

    label: str
    low: float
    high: float
    percent: bool = False
    is_whole: bool = False
    is_log: bool = False

    def share(self, value: float) -> float:
        """Of the axis's length, at which the value lies: 0 at the low end, 1 at the high one. A
        scale of ratios has no place for 0: it lies at the low end."""
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Three to six round values within the range: steps of 1, 2 or 5 times a power of ten. 0 …
        1 gives 0, 0.2, … 1. On a scale of ratios the powers of ten: 0.03 … 2 gives 0.1, 1."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1)]
        raw = max((self.high - self.low) / 5, 1.0 if self.is_whole else 0.0)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def text(self, value: float) -> str:
        return f"{100 * value:.0f} %" if self.percent else f"{value:.6g}"


def axis_over(label: str, values: Sequence[float], *, percent: bool = False, floor: float | None = None) -> Axis:
    """An axis that holds all values, with 5 % to spare above; `floor` pulls its lower end down to
    that value (0 for a quantity that starts there)."""
    low = min([*values, floor] if floor is not None else values, default=0.0)
    high = max(values, default=1.0)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    return Axis(label, low, high if percent and high == 1 else high + 0.05 * (high - low), percent)


def log_axis_over(label: str, values: Sequence[float]) -> Axis:
    """A scale of ratios from the power of ten below the positive values to the one above, for what
    falls fast and then slowly."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return Axis(label, 10.0**low, 10.0 ** max(high, low + 1), is_log=True)


def line_chart(title: str, series: Sequence[Series], x: Axis, y: Axis, *, has_diagonal: bool = False) -> Markup:
    """Lines over a common x. A line of one point is drawn as a dot, a line of none is left out.
    `has_diagonal` adds y = x, for a calibration."""
    parts = [_frame(x, y)]
    if has_diagonal:
        parts.append(f'<path class="guide" d="M{_x(x, x.low)} {_y(y, x.low)}L{_x(x, x.high)} {_y(y, x.high)}"/>')
    for one in series:
        style = one.style % NUM_STYLES
        path = "L".join(f"{_x(x, at)} {_y(y, value)}" for at, value in one.points)
        if len(one.points) > 1:
            parts.append(f'<path class="line c{style}" d="M{path}"/>')
        if len(one.points) <= 12:
            parts += [
                f'<circle class="dot c{style}" cx="{_x(x, at)}" cy="{_y(y, value)}" r="2.6"/>'
                for at, value in one.points
            ]
    return _svg(title, parts, [(one.label, one.style % NUM_STYLES) for one in series if len(series) > 1])


def stacked_chart(
    title: str, steps: Sequence[float], layers: Sequence[tuple[str, Sequence[float]]], x: Axis, y: Axis
) -> Markup:
    """One column per step, the layers on top of each other from below; layer i is drawn in style i
    + 1. Each layer has a height for every step."""
    parts = [_frame(x, y)]
    width = max(1.0, 0.8 * (WIDTH - LEFT - RIGHT) / max(len(steps), 1))
    for index, at in enumerate(steps):
        base = 0.0
        for style, (_, heights) in enumerate(layers, 1):
            top = base + heights[index]
            if heights[index] > 0:
                height = f"{float(_y(y, base)) - float(_y(y, top)):.1f}"
                left = f"{float(_x(x, at)) - width / 2:.1f}"
                parts.append(
                    f'<rect class="fill c{style}" x="{left}" y="{_y(y, top)}" width="{width:.1f}" height="{height}"/>'
                )
            base = top
    return _svg(title, parts, [(label, style) for style, (label, _) in enumerate(layers, 1)], is_filled=True)


def interval_chart(title: str, rows: Sequence[tuple[str, float, float, float]], x: Axis) -> Markup:
    """One horizontal line per row (label, value, low, high): a dot in its interval. All on one
    scale, so that overlap is seen at a glance."""
    height, left = 34 + 26 * len(rows), 70

    def place(at: float) -> str:
        return f"{left + (WIDTH - left - RIGHT) * x.share(at):.1f}"

    parts = [f'<path class="grid" d="M{place(tick)} 6V{height - 28}"/>' for tick in x.ticks()]
    parts += [
        f'<text x="{place(tick)}" y="{height - 12}" text-anchor="middle">{x.text(tick)}</text>' for tick in x.ticks()
    ]
    for index, (label, value, low, high) in enumerate(rows):
        y, style = 20 + 26 * index, index % NUM_STYLES
        parts.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        parts.append(
            f'<path class="whisker c{style}" d="M{place(low)} {y}H{place(high)}M{place(low)} '
            f'{y - 5}v10M{place(high)} {y - 5}v10"/>'
        )
        parts.append(f'<circle class="dot c{style}" cx="{place(value)}" cy="{y}" r="4.5"/>')
    return _svg(title, parts, [], height=height)


def _frame(x: Axis, y: Axis) -> str:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts = [f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>']
    for tick in y.ticks():
        parts.append(f'<path class="grid" d="M{LEFT} {_y(y, tick)}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{float(_y(y, tick)) + 4:.1f}" text-anchor="end">{y.text(tick)}</text>')
    parts += [
        f'<text x="{_x(x, tick)}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{x.text(tick)}</text>'
        for tick in x.ticks()
    ]
    parts.append(f'<text class="name" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x.label)}</text>')
    parts.append(
        f'<text class="name" transform="translate(9 {middle}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.label)}</text>'
    )
    return "".join(parts)


def _svg(
    title: str,
    parts: Sequence[str],
    legend: Sequence[tuple[str, int]],
    *,
    height: int = HEIGHT,
    is_filled: bool = False,
) -> Markup:
    mark = (
        '<rect class="fill c{}" x="5" width="12" height="8"/>' if is_filled else '<path class="line c{}" d="M1 4H21"/>'
    )
    keys = "".join(
        f'<li><svg class="key" viewBox="0 0 22 8" aria-hidden="true">{mark.format(style)}</svg>{escape(label)}</li>'
        for label, style in legend
    )
    drawing = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    listed = f'<ul class="legend">{keys}</ul>' if keys else ""
    # Every value that reaches the markup is a number formatted here or went through escape().
    return Markup(f"<figure><figcaption>{escape(title)}</figcaption>{drawing}{listed}</figure>")  # noqa: S704


def _x(axis: Axis, value: float) -> str:
    return f"{LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT):.1f}"


def _y(axis: Axis, value: float) -> str:
    return f"{HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM):.1f}"
