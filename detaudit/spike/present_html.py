"""One self-contained HTML page: the sections' tables, and the plots as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from detaudit.spike import svg
from detaudit.spike.tables import Section, Table
from detaudit.spike.wording import word

_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1100px;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;margin:.3rem 0 1.2rem;font-variant-numeric:tabular-nums}
th,td{border:1px solid #ccc;padding:.2rem .5rem;text-align:left;font-size:13px}
th{background:#f2f2f2}.wrap{overflow-x:auto}.flag{color:#c8281e;font-weight:600}
svg{max-width:100%;height:auto;margin:.5rem 0 1.2rem}.grid{stroke:#e2e2e2}.band{fill:#3b6ea5;opacity:.12}
.tick{font-size:11px;fill:#555;text-anchor:middle}.end{text-anchor:end}.title{font-size:13px;font-weight:600}
.mark{font-size:12px;fill:#c8281e;font-weight:600}dt{font-weight:600}dd{margin:0 0 .4rem 1rem}
"""


def html(
    title: str,
    sections: Sequence[Section],
    p1: Mapping[str, Any] | None,
    p2: Mapping[str, Any] | None,
    p3: Mapping[str, Any] | None,
    lang: str,
) -> str:
    """The page as text; equal input gives equal bytes."""
    plots = [[*_curves(p1, p2, lang), *_heat(p1, p2, lang)] if p1 else [], [], _layers(p3, lang) if p3 else []]
    present = [plot for plot, phase in zip(plots, (p1, p2, p3), strict=True) if phase]
    parts = [
        f'<!doctype html><html lang="{lang}"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
    ]
    for section, drawn in zip(sections, present, strict=True):
        parts.append(f"<h2>{escape(section.title)}</h2>")
        parts.extend(drawn)
        parts.extend(_table(table) for table in section.tables)
        statements = "".join(f"<dt>{escape(name)}</dt><dd>{escape(said)}</dd>" for name, said in section.statements)
        parts.append(f"<dl>{statements}</dl>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _table(table: Table) -> str:
    if not table.rows:
        return f"<h3>{escape(table.title)}</h3><p>(none)</p>"
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in table.rows)
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return (
        f'<h3>{escape(table.title)}</h3><div class="wrap"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _cell(cell: str) -> str:
    flagged = cell.endswith("!") or "F!" in cell or "B!" in cell
    return f'<td class="flag">{escape(cell)}</td>' if flagged else f"<td>{escape(cell)}</td>"


def _root(p2: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (p2 or {}).get("root_cause_coordinate") or {}


def _curves(p1: Mapping[str, Any], p2: Mapping[str, Any] | None, lang: str) -> list[str]:
    held = p1.get("curves") or {}
    if not held:
        return []
    size = held["micro_steps"]
    labels = [f"{step}.{m}" if size > 1 else str(step) for step in held["optimizer_steps"] for m in range(size)]
    at = held["root"]["position"][0] * size + held["root"]["position"][1]
    series = [
        (f"rank {rank}", [v for step in norms for v in step], rank == held["root"]["rank"])
        for rank, norms in zip(held["ranks"], held["norms"], strict=True)
    ]
    series.sort(key=lambda item: item[2])
    value = next((column[at] for _, column, strong in series if strong), None)
    root = _root(p2)
    agrees = not root or (root["micro_step"], root["optimizer_step"]) == (
        held["root"]["position"][1] if size > 1 else None,
        held["optimizer_steps"][held["root"]["position"][0]],
    )
    mark = (at, value) if value is not None and agrees else None
    title = f"{word('Norm over micro-steps by rank', lang)}: {held['target_name']}"
    return [svg.lines(title, labels, series, mark, word("root", lang))]


def _heat(p1: Mapping[str, Any], p2: Mapping[str, Any] | None, lang: str) -> list[str]:
    held = p1.get("heat") or {}
    if not held:
        return []
    root = _root(p2)
    mark = None
    if root and root["rank"] in held["ranks"] and root["optimizer_step"] is not None:
        column = max((i for i, step in enumerate(held["steps"]) if step <= root["optimizer_step"]), default=None)
        mark = None if column is None else (held["ranks"].index(root["rank"]), column)
    rows = [f"{word('rank', lang)} {rank}" for rank in held["ranks"]]
    columns = [str(step) for step in held["steps"]]
    return [svg.heat(word("Largest deviation, rank x step", lang), rows, columns, held["max_ratio"], mark)]


def _layers(p3: Mapping[str, Any], lang: str) -> list[str]:
    plots = []
    for anchor in p3["anchors"]:
        labels = [str(layer["layer"]) for layer in anchor["layers"]]
        for prefix, direction in (("f", "forward"), ("b", "backward")):
            cells = [layer["metrics"]["Norm"] for layer in anchor["layers"]]
            ab, cd = [cell[f"{prefix}_ab"] for cell in cells], [cell[f"{prefix}_cd"] for cell in cells]
            if not any(ab):
                continue
            held = anchor["thresholds"][f"{direction}.Norm"]
            centre = held["median_c_d"] or 1.0
            bars = (centre / held["ratio"], centre * held["ratio"])
            title = f"{word('A/B and C/D by layer', lang)}: {anchor['name']}, {word(direction, lang)} (Norm)"
            flags = [bool(cell[f"{prefix}_flag"]) for cell in cells]
            plots.append(
                svg.ratios(
                    title, labels, ab, cd, bars, flags, f"{word('threshold', lang)} {math.log(held['ratio']):.3g}"
                )
            )
    return plots
