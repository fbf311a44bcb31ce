"""Charts as SVG, coloured by classes: the page that holds them decides between light and dark.

A drawing's series have the class `s-KEY`; `palette` has the colours of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ofl_research.reproduction.axes import Axis, axis_for, number

WIDTH, HEIGHT = 360.0, 232.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 26.0, 38.0
_DOT = 2.4


@dataclass(frozen=True)
class Series:
    """A line: places in order, and how far each reaches up and down."""

    key: str
    label: str
    points: Sequence[tuple[float, float]]
    deviations: Sequence[float] = ()
    dots: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar of a group."""

    key: str
    value: float
    deviation: float = 0.0


@dataclass(frozen=True)
class Dot:
    """A measured figure on a scale, or a quoted one (drawn hollow)."""

    key: str
    value: float
    deviation: float = 0.0
    quoted: bool = False


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    x_log: bool = False,
    y_log: bool = False,
    levels: Sequence[tuple[str, float]] = (),
) -> str:
    """Lines with bands of one deviation; `levels` are horizontal lines with a label."""
    across = axis_for(
        (place for one in series for place, _ in one.points), _LEFT, WIDTH - _RIGHT, log=x_log, pad=0.04 if x_log else 0
    )
    reached = [value for one in series for value in _reach(one)] + [value for _, value in levels]
    upward = axis_for(reached, HEIGHT - _BOTTOM, _TOP, log=y_log)
    parts = [_frame(title, x, y, across, upward)]
    for label, value in levels:
        place = upward.place(value)
        parts.append(f'<line class="level" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT + 4}" y="{place - 3:.1f}">{label}</text>')
    parts += [_line(one, across, upward) for one in series]
    return _svg(title, parts)


def bar_chart(title: str, groups: Sequence[tuple[str, Sequence[Bar]]], *, y: str) -> str:
    """Groups of bars from zero on."""
    tops = [bar.value + bar.deviation for _, bars in groups for bar in bars]
    upward = axis_for([0.0, *tops], HEIGHT - _BOTTOM, _TOP, zero=True)
    across = Axis(0, max(1, len(groups)), _LEFT, WIDTH - _RIGHT)
    parts = [_frame(title, "", y, None, upward)]
    step = across.place(1) - across.place(0)
    for place, (label, bars) in enumerate(groups):
        start, width = across.place(place) + 0.14 * step, 0.72 * step / max(1, len(bars))
        for number_, bar in enumerate(bars):
            parts.append(_bar(bar, label, start + number_ * width, width, upward))
        middle = across.place(place) + step / 2
        parts.append(
            f'<text class="tick" x="{middle:.1f}" y="{HEIGHT - _BOTTOM + 14:.1f}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    return _svg(title, parts)


def dot_chart(title: str, rows: Sequence[tuple[str, Sequence[Dot]]], *, x: str) -> str:
    """One row a label and in it a line a key: figures as dots with their deviation, quoted ones as hollow diamonds."""
    left, line = 96.0, 8.0
    keys = list(dict.fromkeys(dot.key for _, dots in rows for dot in dots))
    room = line * len(keys) + 12
    floor = _TOP + room * len(rows)
    edges = [dot.value + side * dot.deviation for _, dots in rows for dot in dots for side in (-1, 1)]
    across = axis_for(edges, left, WIDTH - _RIGHT)
    parts = [f'<text class="title" x="4" y="14">{escape(title)}</text>']
    for tick in across.ticks():
        place = across.place(tick)
        parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{floor:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{place:.1f}" y="{floor + 13:.1f}" text-anchor="middle">{number(tick)}</text>'
        )
    for place, (label, dots) in enumerate(rows):
        top = _TOP + room * place
        parts.append(f'<line class="grid" x1="4" x2="{WIDTH - _RIGHT:.1f}" y1="{top:.1f}" y2="{top:.1f}"/>')
        parts.append(f'<text class="row" x="4" y="{top + room / 2 + 4:.1f}">{escape(label)}</text>')
        parts += [_dot(dot, across, top + 6 + line * (keys.index(dot.key) + 0.5)) for dot in dots]
    middle = (left + WIDTH) / 2
    parts.append(f'<text class="label" x="{middle:.1f}" y="{floor + 28:.1f}" text-anchor="middle">{x}</text>')
    return _svg(title, parts, floor + 34)


def _reach(one: Series) -> list[float]:
    values = [value for _, value in one.points]
    return [
        *values,
        *(value + side * room for value, room in zip(values, one.deviations, strict=False) for side in (-1, 1)),
    ]


def _line(one: Series, across: Axis, upward: Axis) -> str:
    places = [(across.place(x), upward.place(y)) for x, y in one.points]
    parts = []
    if one.deviations and any(one.deviations):
        upper = [
            (x, upward.place(y + room)) for (x, _), (_, y), room in zip(places, one.points, one.deviations, strict=True)
        ]
        lower = [
            (x, upward.place(y - room)) for (x, _), (_, y), room in zip(places, one.points, one.deviations, strict=True)
        ]
        parts.append(f'<polygon class="band" points="{_points([*upper, *reversed(lower)])}"/>')
    style = ' stroke-dasharray="4 3"' if one.dashed else ""
    parts.append(f'<polyline class="line"{style} points="{_points(places)}"/>')
    if one.dots or len(places) == 1:
        parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{_DOT}"/>' for x, y in places]
    return f'<g class="s-{one.key}"><title>{escape(one.label)}</title>{"".join(parts)}</g>'


def _bar(bar: Bar, label: str, x: float, width: float, upward: Axis) -> str:
    top, floor, middle = upward.place(bar.value), upward.place(0.0), x + width / 2
    whisker = ""
    if bar.deviation:
        high, low = upward.place(bar.value + bar.deviation), upward.place(max(0.0, bar.value - bar.deviation))
        whisker = f'<line class="whisker" x1="{middle:.1f}" x2="{middle:.1f}" y1="{high:.1f}" y2="{low:.1f}"/>'
    return (
        f'<g class="s-{bar.key}"><title>{escape(label)}: {bar.value:.4g}</title><rect class="bar" x="{x:.1f}" '
        f'y="{top:.1f}" width="{0.92 * width:.1f}" height="{max(0.0, floor - top):.1f}" rx="1.5"/>{whisker}</g>'
    )


def _dot(dot: Dot, across: Axis, y: float) -> str:
    x = across.place(dot.value)
    title = f"<title>{escape(dot.key)}: {dot.value:.2f}{' (paper)' if dot.quoted else ''}</title>"
    if dot.quoted:
        shape = f'<path class="quoted" d="M{x:.1f} {y - 3.6:.1f}l3.6 3.6l-3.6 3.6l-3.6 -3.6z"/>'
        return f'<g class="s-{dot.key}">{title}{shape}</g>'
    low, high = across.place(dot.value - dot.deviation), across.place(dot.value + dot.deviation)
    whisker = f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'<g class="s-{dot.key}">{title}{whisker}<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/></g>'


def _frame(title: str, x: str, y: str, across: Axis | None, upward: Axis) -> str:
    floor, middle = HEIGHT - _BOTTOM, (_LEFT + WIDTH - _RIGHT) / 2
    parts = [
        f'<text class="title" x="4" y="14">{escape(title)}</text>',
        f'<text class="label" x="{WIDTH - _RIGHT}" y="14" text-anchor="end">{escape(y)}</text>',
        f'<text class="label" x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>',
    ]
    for tick in upward.ticks():
        place = upward.place(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 5}" y="{place + 3.5:.1f}" text-anchor="end">{number(tick)}</text>'
        )
    for tick in across.ticks() if across else ():
        place = across.place(tick) if across else 0.0
        parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{floor}"/>')
        parts.append(f'<text class="tick" x="{place:.1f}" y="{floor + 14}" text-anchor="middle">{number(tick)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{floor}" y2="{floor}"/>')
    return "".join(parts)


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _svg(title: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
