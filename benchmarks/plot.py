"""Line charts as SVG, made by hand: no library, one file, readable in light and in dark.

A chart is a value and its SVG is text, so a test can look at it. Colours differ and so do the
marks, for readers who do not see colours; text and grid follow the reader's colour scheme.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 760
HEIGHT: Final = 420
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 78, 52
COLOURS: Final = ("#2f81f7", "#e36209", "#2da44e", "#a371f7")
_STYLE: Final = """\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.grid { stroke: #d0d7de }
.line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .grid { stroke: #3d444d } }"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
        name: What the legend calls it.
        points: Its points, x and y, in the order of x.
        spread: For each point, the lowest and the highest y that belong to it; empty for none.
        joined: Draw a line through the points; otherwise small dots alone.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[tuple[float, float], ...] = ()
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart whose axes begin at 0, with at least one line that has a point."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]


def ticks(highest: float, about: int = 5) -> list[float]:
    """Return round numbers from 0 to the first one at or above `highest`.

    Args:
        highest: What the axis must reach; above 0.
        about: How many steps are wanted.
    """
    raw = highest / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= raw * (1 - 1e-9))
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def svg(chart: Chart) -> str:
    """Draw the chart."""
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points]
    ys += [high for line in chart.lines for _, high in line.spread]
    across, up = ticks(max(xs) or 1.0), ticks(max(ys) or 1.0)
    place = _Scale(across[-1], up[-1])
    body = [*_axes(chart, across, up, place)]
    for number, line in enumerate(chart.lines):
        body += _drawn(line, number, place)
        body += _legend(line, number, chart.lines)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{_text(chart.title)}">',
            f"<style>{_STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    x_most: float
    y_most: float

    def x(self, value: float) -> float:
        return round(LEFT + value / self.x_most * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - value / self.y_most * (HEIGHT - TOP - BOTTOM), 1)


def _axes(chart: Chart, across: Sequence[float], up: Sequence[float], place: _Scale) -> list[str]:
    floor, middle = place.y(0), (TOP + HEIGHT - BOTTOM) / 2
    found = [f'<text class="title" x="{LEFT}" y="26">{_text(chart.title)}</text>']
    for value in up:
        y = place.y(value)
        found.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        found.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{_number(value)}</text>')
    for value in across:
        x = place.x(value)
        found.append(f'<path class="grid" d="M{x} {floor}v5"/>')
        found.append(f'<text x="{x}" y="{floor + 20}" text-anchor="middle">{_number(value)}</text>')
    found.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"{_text(chart.x_label)}</text>"
    )
    found.append(
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">'
        f"{_text(chart.y_label)}</text>"
    )
    return found


def _drawn(line: Line, number: int, place: _Scale) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    points = [(place.x(x), place.y(y)) for x, y in line.points]
    if not line.joined:
        dots = "".join(f"M{x} {y}h0" for x, y in points)
        return [
            f'<path d="{dots}" stroke="{colour}" stroke-width="4" stroke-linecap="round" '
            'opacity="0.45"/>'
        ]
    path = "L".join(f"{x} {y}" for x, y in points)
    found = [f'<path class="line" d="M{path}" stroke="{colour}"/>']
    found += [
        f'<path class="line" d="M{x} {place.y(low)}V{place.y(high)}" stroke="{colour}"/>'
        for (x, _), (low, high) in zip(points, line.spread, strict=False)
    ]
    # Marks are for lines of few points; on a curve they would hide it.
    return found + [_mark(x, y, number) for x, y in points if len(points) <= 20]


def _mark(x: float, y: float, number: int) -> str:
    colour = COLOURS[number % len(COLOURS)]
    match number % 3:
        case 0:
            return f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>'
        case 1:
            return f'<rect x="{x - 4.5}" y="{y - 4.5}" width="9" height="9" fill="{colour}"/>'
        case _:
            return f'<path d="M{x - 5.5} {y + 4.5}h11l-5.5 -10z" fill="{colour}"/>'


def _legend(line: Line, number: int, lines: Sequence[Line]) -> list[str]:
    # About 7 px for a letter, so that names of any length stand beside each other.
    x = LEFT + 6 + sum(34 + 7 * len(line.name) for line in lines[:number])
    return [_mark(x, 52, number), f'<text x="{x + 12}" y="56">{_text(line.name)}</text>']


def _number(value: float) -> str:
    return f"{value:,.10g}" if value < 1e6 else f"{value / 1e6:,.10g} M"


def _text(text: str) -> str:
    return escape(text, {'"': "&quot;"})
