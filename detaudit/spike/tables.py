"""The tables of the seed, built from phase results. Presenters render these and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detaudit.spike.wording import word

MAX_ROWS = 60


@dataclass
class Table:
    """A titled table of text cells."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass
class Section:
    """One phase: its tables, then problem, evidence, impact and advice."""

    title: str
    tables: list[Table] = field(default_factory=list)
    statements: list[tuple[str, str]] = field(default_factory=list)


def show(value: Any, digits: int = 4) -> str:
    """A value as table text: `-` for unknown, four significant digits for floats."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return str(value)


def times(value: float | None, mark: str = "") -> str:
    """A ratio as the seed writes it: 29.6x B!"""
    return "-" if value is None else f"{value:.4g}x{' ' + mark if mark else ''}"


def deviation(row: Mapping[str, Any]) -> str:
    return times(row["deviation_ratio"]) if row["deviation_ratio"] is not None else row["trigger"]


def _capped(rows: list[list[str]]) -> tuple[list[list[str]], str]:
    left = len(rows) - MAX_ROWS
    return rows[:MAX_ROWS], f"... {left} more" if left > 0 else ""


def phase1_section(p1: Mapping[str, Any], lang: str) -> Section:
    """Tables 1 and 2 of phase 1 and its conclusion."""
    w = _speaker(lang)
    section = Section(w("Phase 1: candidate coordinates"))
    sharding, summary = p1["sharding_analysis"], p1["summary"]
    first, last, steps = summary["steps"] if summary else (None, None, 0)
    section.tables.append(
        Table(
            w("Data overview"),
            [w("Item"), w("Value")],
            [
                [w("Data"), f"{p1['db_path']} / {p1['format']} / {sharding['metric']}"],
                [w("Parameters"), show(summary.get("targets"))],
                [w("Steps / ranks"), f"{show(first)}..{show(last)} ({steps}) / {show(summary.get('ranks'))}"],
                [w("Pass unit"), f"{sharding['pass_unit']}, window {sharding['accumulation_window']}"],
                [
                    w("Window evidence"),
                    f"{sharding['window_evidence']} ({sharding['window_confidence']}): {sharding['window_note']}",
                ],
            ],
        )
    )
    leads = [group["lead"] for group in p1["groups"]]
    rows, note = _capped(
        [
            [
                show(lead["optimizer_step"] if lead["optimizer_step"] is not None else lead["step"]),
                show(lead["rank"]) if group["rank"] is not None else f"{lead['rank']} ({w(group['scope'])})",
                lead["target_name"],
                show(lead["micro_step"]),
                show(lead["delta"]),
                deviation(lead),
                show(lead["suspect_final_norm"]),
            ]
            for lead, group in zip(leads, p1["groups"], strict=True)
        ]
    )
    head = ["Opt step", "Rank", "Parameter", "Micro-step", "delta", "Deviation", "Final norm"]
    section.tables.append(Table(w("Candidate coordinates"), [w(h) for h in head], rows, note))
    if leads:
        problem = f"{deviation(leads[0])} at step {show(leads[0]['optimizer_step'])}, {leads[0]['target_name']}"
    else:
        problem = f"no abnormal gradient: {p1['outcome']}"
    section.statements.append((w("Problem"), problem))
    if summary:
        section.statements.append(
            (w("Evidence"), f"{summary['anomalies_total']} abnormal of {summary['cells_judged']} judged cells")
        )
    advice = "go on with phase 2" if leads else "nothing to trace in what was recorded"
    section.statements.append((w("Advice"), p1["questions"][0] if p1["outcome"] == "question" else advice))
    _open_ends(section, p1, w)
    return section


def phase2_section(p2: Mapping[str, Any], lang: str) -> Section:
    """Tables 1 and 2 of phase 2 and its conclusion."""
    w = _speaker(lang)
    section = Section(w("Phase 2: root coordinate"))
    rows, note = _capped(
        [
            [
                f"{point['from_step']} → {point['to_step']}",
                f"{p2['growth_threshold']:g}x",
                f"{point['growing']}/{point['compared']} ({point['share']:.0%})",
                f"{w('root lies in')} {point['from_step']}" if point["qualifies"] else w("no turning point"),
            ]
            for point in p2["turning_points"]
        ]
    )
    head = ["Pair", "Growth threshold", "Ranks reached", "Verdict"]
    section.tables.append(Table(w("Across optimizer steps"), [w(h) for h in head], rows, note))
    rows, note = _capped([_candidate(row, w) for row in p2["candidates"] if "optimizer_step" in row])
    head = ["Opt step", "Rank", "Parameter", "Micro-step", "delta", "Benchmark", "Ratio", "Verdict"]
    section.tables.append(Table(w("Candidate coordinates"), [w(h) for h in head], rows, note))
    root = p2["root_cause_coordinate"]
    section.statements.append((w("Problem"), p2["reasoning"][-1] if p2["reasoning"] else p2["outcome"]))
    section.statements.append((w("Evidence"), "; ".join(p2["reasoning"][:-1]) or p2["outcome"]))
    origin = p2["origin"]
    if origin:
        impact = f"{origin['verdict']} ({', '.join(origin['candidates'])}): {'; '.join(origin['evidence'])}"
        section.statements.append((w("Impact"), impact))
    decide = (origin or {}).get("would_decide", "")
    section.statements.append(
        (
            w("Advice"),
            "dump this coordinate and go on with phase 3" + (f"; {decide}" if decide else "")
            if root
            else "see what was not seen",
        )
    )
    _open_ends(section, p2, w)
    return section


def _candidate(row: Mapping[str, Any], w: Any) -> list[str]:
    return [
        show(row["optimizer_step"]),
        show(row["rank"]) if row["rank"] is not None else w(row["rank_scope"]),
        row["target_name"],
        show(row["micro_step"]),
        show(row["delta"]),
        show(row.get("benchmark_contribution")),
        times(row.get("ratio")),
        w(row.get("verdict") or "-"),
    ]


def phase3_section(p3: Mapping[str, Any], lang: str) -> Section:
    """Table 1 per anchor, table 2, starts per metric, operators of the first layer, layers not compared."""
    w = _speaker(lang)
    section = Section(w("Phase 3: where the activations diverge"))
    conclusion = p3["conclusion"]
    for anchor in p3["anchors"]:
        section.tables.append(layer_table(anchor, w))
    if "forward" in conclusion:
        section.tables.append(_directions(conclusion, w))
        section.tables.append(_starts(conclusion, w))
        gaps = [
            [w(direction), gap["layer"], gap["anchor"], ", ".join(gap["metrics"]), gap["why"]]
            for direction in ("forward", "backward")
            for gap in conclusion["uncompared_layers"][direction]
        ]
        rows, note = _capped(gaps)
        head = ["Direction", "Layer", "Anchor", "Metric", "Reason"]
        section.tables.append(Table(w("Layers not compared"), [w(h) for h in head], rows, note))
    if p3.get("drilldown"):
        section.tables.append(_operators(p3["drilldown"], w))
    sums = p3.get("checksum_divergence")
    if sums and sums["verdict"] != "not comparable":
        section.tables.append(_checksums(sums, w))
    lead = conclusion.get("priority", {}).get("text") or "; ".join(p3["questions"]) or p3["outcome"]
    section.statements.append((w("Problem"), lead))
    evidence = [p3.get("control_warning", ""), p3.get("anchor_warning", ""), p3.get("observer_warning", "")]
    evidence += [p3["data_features"]["verdict"]] if "data_features" in p3 else []
    section.statements.append((w("Evidence"), "; ".join(text for text in evidence if text) or "-"))
    drilled = p3.get("drilldown")
    if drilled and drilled["earliest"]:
        where = f" ({drilled['source_line']})" if drilled["source_line"] else ""
        section.statements.append((w("Advice"), f"look at {drilled['earliest']['key']}{where}"))
    _open_ends(section, p3, w)
    return section


def layer_table(anchor: Mapping[str, Any], w: Any, metric: str = "Norm") -> Table:
    """The seed's table of one anchor: norms of the four sides and their ratios, forward then backward."""
    rows = []
    for layer in anchor["layers"]:
        cells = layer["metrics"][metric]
        row = [str(layer["layer"])]
        for prefix, name, mark in (("f", "fwd", "F!"), ("b", "bwd", "B!")):
            row += [show(value) for value in cells[name]]
            row += [times(cells[f"{prefix}_ab"]), times(cells[f"{prefix}_cd"])]
            others = [m for m in layer["metrics"] if m != metric and layer["metrics"][m][f"{prefix}_flag"]]
            flag = mark if cells[f"{prefix}_flag"] else ""
            text = times(cells[f"{prefix}_anomaly"], flag)
            row.append(text + (f" [{','.join(others)} {mark}]" if others else ""))
        rows.append(row)
    head = ["L"]
    for side in ("F", "B"):
        head += [f"{side}_{name}" for name in "ABCD"] + [f"{side}_A/B", f"{side}_C/D", w(f"{side} anomaly")]
    kept, note = _capped(rows)
    return Table(f"{w('Layer by layer')}: {w('Anchor')} {anchor['name']} ({metric})", head, kept, note)


def _directions(conclusion: Mapping[str, Any], w: Any) -> Table:
    rows = []
    for direction in ("forward", "backward"):
        part = conclusion[direction]
        peak = f"{part['peak_layer']} ({times(part['peak_ratio'])})" if part["peak_layer"] else "-"
        listed = part["flagged_layers"][:12] + (["..."] if len(part["flagged_layers"]) > 12 else [])
        evidence = ", ".join(listed) or part["why"]
        rows.append([w(direction), w(part["verdict"]), show(part["start"]), peak, evidence])
    return Table(w("Directions"), [w(h) for h in ("Direction", "Verdict", "Start", "Peak", "Evidence")], rows)


def _starts(conclusion: Mapping[str, Any], w: Any) -> Table:
    rows = [
        [w(d), metric, show(s["first_flagged"]), show(s["main_segment_start"]), ", ".join(s["lone_flags"]) or "-"]
        for d in ("forward", "backward")
        for metric, s in conclusion[d]["metric_starts"].items()
    ]
    notes = [text for d in ("forward", "backward") for text in conclusion[d]["disagreements"]]
    head = ["Direction", "Metric", "First flagged", "Main segment", "Lone flags"]
    return Table(w("Starts per metric"), [w(h) for h in head], rows, "; ".join(notes))


def _checksums(found: Mapping[str, Any], w: Any) -> Table:
    rows = [[w("Verdict"), found["verdict"]], [w("Operator"), show(found["operator"])], [w("Reason"), found["reason"]]]
    rows.append([w("Last equal"), show(found["last_good"])])
    rows += [[w("Unmatched"), text] for text in found["unmatched"]]
    return Table(w("Checksums of A and B"), [w("Item"), w("Value")], rows, found["weak"])


def _operators(drilled: Mapping[str, Any], w: Any) -> Table:
    rows, note = _capped(
        [
            [
                op["key"],
                times(op["input_ratio"]),
                times(op["largest_ratio"], "!" if op["flagged"] else ""),
                op["metric"] or op["why"],
            ]
            for op in drilled["operators"]
        ]
    )
    title = f"{w('Operators of the first layer')}: {drilled['layer']} ({w(drilled['direction'])})"
    return Table(title, [w(h) for h in ("Operator", "Inputs", "Output", "Metric")], rows, note)


def _open_ends(section: Section, phase: Mapping[str, Any], w: Any) -> None:
    unseen: Sequence[str] = phase.get("not_seen", [])
    if unseen:
        section.statements.append((w("Not seen"), "; ".join(unseen[:8])))
    for question in phase.get("questions", []):
        section.statements.append((w("Question"), question))


def _speaker(lang: str) -> Any:
    return lambda text: word(text, lang)


def sections(
    p1: Mapping[str, Any] | None, p2: Mapping[str, Any] | None, p3: Mapping[str, Any] | None, lang: str
) -> list[Section]:
    """The sections of the phases that are there."""
    found = []
    if p1:
        found.append(phase1_section(p1, lang))
    if p2:
        found.append(phase2_section(p2, lang))
    if p3:
        found.append(phase3_section(p3, lang))
    return found
