"""The evidence as one HTML page with its plots inside; matplotlib is loaded here and nowhere else."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from detaudit.trainsect.evidence_text import markdown

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:2px 8px;text-align:left}"
    "pre{background:#f4f4f4;padding:.6em;overflow:auto}svg{max-width:100%;height:auto}"
)


def html(value: Mapping[str, Any]) -> str:
    """A report as one page. The same report gives the same bytes."""
    plots: list[tuple[str, Callable[[Mapping[str, Any], Any], None], bool]] = [
        ("Evaluation loss and bracket", _curve, bool(value["evaluations"])),
        ("Replays", _tree, bool(value["replays"])),
        ("Dose curve", _dose, bool(value["dose"])),
    ]
    parts = [f"<h2>{title}</h2>{_svg(draw, value)}" for title, draw, there in plots if there]
    parts.append(_shards(value))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Trainsect report</title><style>{STYLE}</style>'
        f"<h1>Trainsect report</h1><p>{escape(value['verdict']['sentence'])}</p>{''.join(parts)}"
        f"<h2>In full</h2><pre>{escape(markdown(value))}</pre></html>\n"
    )


def _svg(draw: Callable[[Mapping[str, Any], Any], None], value: Mapping[str, Any]) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "trainsect", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        FigureCanvasSVG(figure)
        draw(value, figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _curve(value: Mapping[str, Any], axes: Any) -> None:
    points = [(e["step"], e["loss"]) for e in value["evaluations"] if isinstance(e["loss"], int | float)]
    axes.plot([s for s, _ in points], [loss for _, loss in points], marker=".", color="#3b6ea5")
    if points and min(loss for _, loss in points) > 0:
        axes.set_yscale("log")
    if value["threshold"]:
        axes.axhline(value["threshold"]["value"], color="#888", linestyle="--", label="threshold at B")
    if value["verdict"]["bracket"]:
        axes.axvspan(*value["verdict"]["bracket"], color="#c8281e", alpha=0.2, label="bracket")
    if value["threshold"] or value["verdict"]["bracket"]:
        axes.legend()
    axes.set_xlabel("step")
    axes.set_ylabel("evaluation loss")


def _tree(value: Mapping[str, Any], axes: Any) -> None:
    """Replays in the order run: depth is the purpose, colour the answer."""
    purposes = list(dict.fromkeys(r["purpose"] for r in value["replays"]))
    for colour, answer, label in (("#c8281e", True, "collapsed"), ("#3b8f5a", False, "healthy")):
        found = [(i, purposes.index(r["purpose"])) for i, r in enumerate(value["replays"]) if r["collapsed"] is answer]
        axes.scatter([x for x, _ in found], [y for _, y in found], color=colour, label=label, s=16)
    places = [purposes.index(r["purpose"]) for r in value["replays"]]
    axes.plot(range(len(places)), places, color="#bbb", linewidth=0.6, zorder=0)
    axes.set_yticks(range(len(purposes)), purposes)
    axes.invert_yaxis()
    axes.set_xlabel("replay")
    axes.legend()


def _dose(value: Mapping[str, Any], axes: Any) -> None:
    doses = value["dose"]["doses"]
    axes.plot([d["batches"] for d in doses], [d["collapsed"] / d["of"] for d in doses], marker="o", color="#c8281e")
    axes.set_xlabel(f"suspect batches kept, of {value['dose']['suspect_batches']}")
    axes.set_ylabel("share collapsed")
    axes.set_ylim(-0.05, 1.05)


def _shards(value: Mapping[str, Any]) -> str:
    """Per shard: in how many minimal sets it is, and the margin of the replay in which it alone was real."""
    sets = value["shards"]["sets"] if value["shards"] else []
    names = sorted({name for each in sets for name in each} | set(value["verdict"]["shards"]))
    if not names:
        return ""
    alone = {r["what"].removeprefix("only "): r for r in value["replays"] if r["purpose"] == "shard"}
    rows = []
    for name in names:
        margin = alone[name]["margin"] if name in alone else None
        shown = f"{margin:.3g}" if isinstance(margin, float) and math.isfinite(margin) else str(margin or "not asked")
        member = sum(name in each for each in sets)
        necessary = "yes" if sets and member == len(sets) else "no"
        rows.append(f"<tr><td>{escape(name)}<td>{member} of {len(sets)}<td>{necessary}<td>{escape(shown)}")
    head = "<tr><th>shard<th>in minimal sets<th>necessary<th>margin alone"
    return f"<h2>Shards</h2><table>{head}{''.join(rows)}</table>"
