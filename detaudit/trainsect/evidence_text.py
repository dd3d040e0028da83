"""The evidence as Markdown: verdict first, then the numbers it rests on, then the commands that show it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

INTEGRITY = "`integrity` shows that the report was not changed; it does not show who wrote it."


def markdown(value: Mapping[str, Any]) -> str:
    """A report as Markdown."""
    parts = ["# Trainsect report", "", value["verdict"]["sentence"], ""]
    if value["verdict"]["conditional_on_checkpoint"] is not None:
        at = value["verdict"]["conditional_on_checkpoint"]
        parts += [f"The verdict is conditional on checkpoint {at}. {value['verdict']['state']}".rstrip(), ""]
    parts += _collapse(value["collapse"]) + _timeline(value["timeline"])
    if value["controls"]:
        rows = [
            (c["name"], f"{c['collapsed']}/{c['of']}", c["expected"], _passed(c["passed"]), c["text"])
            for c in value["controls"]
        ]
        parts += ["## Controls", "", *table(("control", "collapsed", "expected", "passed", "remark"), rows), ""]
    parts += _dose(value["dose"])
    if value["replays"]:
        replays = [
            (r["purpose"], r["what"], r["filling"], number(r["loss"]), "yes" if r["collapsed"] else "no",
             number(r["margin"]) + (" (uncertain)" if r["uncertain"] else ""))
            for r in value["replays"]
        ]  # fmt: skip
        parts += ["## Replays", "", *table(("purpose", "what", "filling", "loss", "collapsed", "margin"), replays), ""]
    parts += ["## Again", ""]
    parts += [f"    trainsect verify report.json --only {name}" for name in value["repro"]] or ["Nothing was replayed."]
    parts += ["", INTEGRITY]
    parts += ["", "## Warnings", "", *(f"- {text}" for text in value["warnings"])] if value["warnings"] else []
    return "\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _passed(value: bool | None) -> str:
    return {True: "yes", False: "NO", None: "not run"}[value]


def _collapse(value: Mapping[str, Any]) -> list[str]:
    return [
        "## Collapse",
        "",
        f"{value['kind']}: {value['reason']}. {value['evaluations']} evaluations, noise {number(value['noise'])}, "
        f"tau {number(value['tau'])}, onset {value['onset']}, best loss {number(value['best_loss'])} at step "
        f"{value['best_step']}. {value['cross_check']}",
        "",
    ]


def _timeline(value: Mapping[str, Any] | None) -> list[str]:
    if value is None:
        return []
    probes = [(step, "yes" if answer else "no") for step, answer in value["probes"]]
    return [
        "## Checkpoints",
        "",
        f"Predicate `{value['predicate']}`: [{value['start']}, {value['stop']}), {value['confidence']}; the evaluation "
        f"shows it {value['onset_lag']} steps after the interval.",
        "",
        *table(("checkpoint", "holds"), probes),
        "",
    ]


def _dose(value: Mapping[str, Any] | None) -> list[str]:
    if value is None:
        return []
    rows = [(d["batches"], f"{d['collapsed']}/{d['of']}") for d in value["doses"]]
    return [
        "## Dose",
        "",
        f"All collapse from {value['smallest_with_all_collapsed']} of {value['suspect_batches']} batches on, none at "
        f"{value['largest_with_none_collapsed']}.",
        "",
        *table(("batches", "collapsed"), rows),
        "",
    ]
