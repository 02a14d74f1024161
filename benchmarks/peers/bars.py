"""Bar charts as SVG, in the manner of `benchmarks.plot`: no library, readable in light and dark.

Groups stand beside each other, and each has a bar per name. Every bar has its number above it, so
that readers need not tell the colours apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.plot import COLOURS, ticks

WIDTH: Final = 960
HEIGHT: Final = 440
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 96, 36
SHADES: Final = (*COLOURS, "#bf8700", "#6e7781", "#cf222e", "#1b7c83")
_GAP: Final = 0.25
"""The part of a group's width that is left empty."""
_STYLE: Final = """\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.value { font-size: 10px }
.grid { stroke: #d0d7de }
.spread { stroke: #24292f }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .grid { stroke: #3d444d } .spread { stroke: #e6edf3 } }"""


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that are compared with each other: by name, the height and its lower and upper end."""

    name: str
    bars: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class BarChart:
    """A chart with at least one bar."""

    title: str
    y_label: str
    groups: tuple[Group, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All names of bars, in the order they first appear."""
        return tuple(dict.fromkeys(name for group in self.groups for name in group.bars))


def bar_svg(chart: BarChart) -> str:
    """Draw the chart."""
    ends = [high for group in chart.groups for _, _, high in group.bars.values()]
    up = ticks(max(ends, default=0.0) or 1.0)
    names = chart.names
    body = [*_axis(chart, up), *_legend(names)]
    width = (WIDTH - LEFT - RIGHT) / max(1, len(chart.groups))
    for number, group in enumerate(chart.groups):
        body += _drawn(group, LEFT + number * width, width, names, up[-1])
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{_text(chart.title)}">',
            f"<style>{_STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )


def _y(value: float, most: float) -> float:
    return round(HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM), 1)


def _axis(chart: BarChart, up: Sequence[float]) -> list[str]:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    found = [
        f'<text class="title" x="{LEFT}" y="26">{_text(chart.title)}</text>',
        f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">'
        f"{_text(chart.y_label)}</text>",
    ]
    for value in up:
        y = _y(value, up[-1])
        found.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        found.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:,.10g}</text>')
    return found


def _legend(names: Sequence[str]) -> list[str]:
    found = []
    for number, name in enumerate(names):
        # About 7 px for a letter, as in the line charts.
        x = LEFT + 6 + sum(30 + 7 * len(other) for other in names[:number])
        found.append(f'<rect x="{x}" y="46" width="11" height="11" fill="{_shade(number)}"/>')
        found.append(f'<text x="{x + 16}" y="56">{_text(name)}</text>')
    return found


def _drawn(group: Group, left: float, width: float, names: Sequence[str], most: float) -> list[str]:
    each = width * (1 - _GAP) / max(1, len(names))
    floor = _y(0, most)
    found = [
        f'<text x="{round(left + width / 2, 1)}" y="{HEIGHT - 12}" text-anchor="middle">'
        f"{_text(group.name)}</text>"
    ]
    for number, name in enumerate(names):
        if name not in group.bars:
            continue
        value, low, high = group.bars[name]
        x, top = left + width * _GAP / 2 + number * each, _y(value, most)
        middle = round(x + each / 2, 1)
        found.append(
            f'<rect x="{x:.1f}" y="{top}" width="{each * 0.88:.1f}" '
            f'height="{round(floor - top, 1)}" fill="{_shade(number)}">'
            f"<title>{_text(name)}: {value:.2f}</title></rect>"
        )
        found.append(f'<path class="spread" d="M{middle} {_y(low, most)}V{_y(high, most)}"/>')
        found.append(
            f'<text class="value" x="{middle}" y="{_y(high, most) - 4}" '
            f'text-anchor="middle">{_short(value)}</text>'
        )
    return found


def _short(value: float) -> str:
    """Write a number in two digits, so that it is no wider than a bar."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _shade(number: int) -> str:
    return SHADES[number % len(SHADES)]


def _text(text: str) -> str:
    return escape(text, {'"': "&quot;"})
