"""Small deterministic SVG charts: lines, ratios by layer, heat map. Numbers in, text out; nothing is loaded to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 860, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 30, 40
_COLOURS = ("#3b6ea5", "#7a9e4b", "#b07aa1", "#d19a3d", "#5b9ea0", "#8c6d5a", "#6b6ecf", "#9c9e9f")
ROOT_COLOUR = "#c8281e"

Series = Sequence[float | None]


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    low, high = math.log10(low), math.log10(high)
    return (low - 0.1, high + 0.1) if high - low < 0.2 else (low, high)


def _frame(title: str, body: Sequence[str], height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">'
        f'<text x="{LEFT}" y="18" class="title">{escape(title)}</text>' + "".join(body) + "</svg>"
    )


def _axis(low: float, high: float) -> list[str]:
    """Decade lines of a logarithmic axis, or five lines where it spans less than one decade."""
    marks = [float(m) for m in range(math.ceil(low), math.floor(high) + 1)]
    if len(marks) < 2:
        marks = [low + (high - low) * i / 4 for i in range(5)]
    marks = marks[:: max(1, len(marks) // 8)]
    parts = []
    for mark in marks:
        y = _y(10**mark, low, high)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" class="tick end">{10**mark:.3g}</text>')
    return parts


def _y(value: float, low: float, high: float) -> float:
    share = (math.log10(value) - low) / (high - low)
    return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 2)


def _x(i: int, count: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * (i + 0.5) / max(count, 1), 2)


def _path(points: Sequence[tuple[float, float] | None], style: str) -> str:
    commands, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        commands.append(f"{pen}{point[0]} {point[1]}")
        pen = "L"
    return f'<path d="{" ".join(commands)}" {style}/>' if commands else ""


def lines(
    title: str,
    labels: Sequence[str],
    series: Sequence[tuple[str, Series, bool]],
    mark: tuple[int, float] | None,
    marked: str,
) -> str:
    """Logarithmic line chart. A series is (name, values, emphasised); `mark` is (position, value) of the root."""
    values = [v for _, column, _ in series for v in column if v is not None and v > 0]
    low, high = _span(values)
    body = _axis(low, high)
    step = max(1, len(labels) // 16)
    for i in range(0, len(labels), step):
        body.append(
            f'<text x="{_x(i, len(labels))}" y="{HEIGHT - BOTTOM + 16}" class="tick">{escape(labels[i])}</text>'
        )
    for n, (name, column, strong) in enumerate(series):
        points = [
            (_x(i, len(column)), _y(v, low, high)) if v is not None and v > 0 else None for i, v in enumerate(column)
        ]
        colour = ROOT_COLOUR if strong else _COLOURS[n % len(_COLOURS)]
        style = f'fill="none" stroke="{colour}" stroke-width="{2.5 if strong else 1.2}"'
        body.append(f"<g><title>{escape(name)}</title>{_path(points, style)}</g>")
    if mark and mark[1] > 0:
        x, y = _x(mark[0], len(labels)), _y(mark[1], low, high)
        body.append(f'<circle cx="{x}" cy="{y}" r="6" fill="none" stroke="{ROOT_COLOUR}" stroke-width="2"/>')
        body.append(f'<text x="{x + 9}" y="{y - 6}" class="mark">{escape(marked)}</text>')
    return _frame(title, body)


def ratios(
    title: str,
    labels: Sequence[str],
    ab: Series,
    cd: Series,
    bars: tuple[float, float] | None,
    flags: Sequence[bool],
    bound: str,
) -> str:
    """A/B and C/D by layer on a logarithmic axis, the band of the threshold around C/D's centre, flagged layers
    marked."""
    values = [abs(v) for v in (*ab, *cd, *(bars or ())) if v]
    low, high = _span(values or [0.9, 1.1])
    body = _axis(low, high)
    if bars:
        top, bottom = _y(bars[1], low, high), _y(bars[0], low, high)
        body.append(
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{round(bottom - top, 2)}" class="band">'
            f"<title>{escape(bound)}</title></rect>"
        )
    step = max(1, len(labels) // 24)
    for i in range(0, len(labels), step):
        body.append(
            f'<text x="{_x(i, len(labels))}" y="{HEIGHT - BOTTOM + 16}" class="tick">{escape(labels[i][-10:])}</text>'
        )
    for name, column, colour in (("C/D", cd, _COLOURS[7]), ("A/B", ab, _COLOURS[0])):
        points = [(_x(i, len(column)), _y(abs(v), low, high)) if v else None for i, v in enumerate(column)]
        style = f'fill="none" stroke="{colour}" stroke-width="1.6"'
        body.append(f"<g><title>{name}</title>{_path(points, style)}</g>")
        for i, point in enumerate(points):
            if point and name == "A/B":
                hot = ROOT_COLOUR if flags[i] else colour
                body.append(f'<circle cx="{point[0]}" cy="{point[1]}" r="3.5" fill="{hot}"/>')
    body.append(f'<text x="{WIDTH - RIGHT}" y="18" class="tick end">A/B (blue, red = flagged), C/D (grey)</text>')
    return _frame(title, body)


def heat(
    title: str, rows: Sequence[str], columns: Sequence[str], table: Sequence[Series], mark: tuple[int, int] | None
) -> str:
    """Heat map of ratios >= 1 on a logarithmic colour scale; unknown cells are hatched grey."""
    cell = max(2.0, min(22.0, 420 / max(len(rows), 1)))
    height = int(TOP + BOTTOM + cell * len(rows))
    wide = (WIDTH - LEFT - RIGHT) / max(len(columns), 1)
    peak = max((v for row in table for v in row if v), default=2.0)
    scale = max(math.log(max(peak, 1.0)), math.log(2))
    body = []
    for r, row in enumerate(table):
        for c, value in enumerate(row):
            x, y = round(LEFT + c * wide, 2), round(TOP + r * cell, 2)
            ratio = "-" if value is None else f"{value:.4g}x"
            label = f"{rows[r]}, {columns[c]}: {ratio}"
            body.append(
                f'<rect x="{x}" y="{y}" width="{round(wide, 2)}" height="{round(cell, 2)}" '
                f'fill="{_tone(value, scale)}">'
                f"<title>{escape(label)}</title></rect>"
            )
    for r in range(0, len(rows), max(1, len(rows) // 16)):
        body.append(
            f'<text x="{LEFT - 6}" y="{round(TOP + (r + 0.7) * cell, 2)}" class="tick end">{escape(rows[r])}</text>'
        )
    for c in range(0, len(columns), max(1, len(columns) // 16)):
        x = round(LEFT + (c + 0.5) * wide, 2)
        body.append(f'<text x="{x}" y="{height - BOTTOM + 16}" class="tick">{escape(columns[c])}</text>')
    if mark:
        x, y = round(LEFT + mark[1] * wide, 2), round(TOP + mark[0] * cell, 2)
        body.append(
            f'<rect x="{x}" y="{y}" width="{round(wide, 2)}" height="{round(cell, 2)}" fill="none" '
            f'stroke="#111" stroke-width="2"/>'
        )
    return _frame(title, body, height)


def _tone(value: float | None, scale: float) -> str:
    if value is None:
        return "#d9d9d9"
    share = min(max(math.log(max(value, 1.0)) / scale, 0.0), 1.0)
    return f"rgb({round(246 - 46 * share)},{round(244 - 204 * share)},{round(238 - 208 * share)})"
