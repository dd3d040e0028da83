"""What is known of a divergence, in the words that the catalogue's signatures are written in.

`gather` reads top to bottom: the first leaf, what the drill-down said, what the manifests and layouts tell of the
runs, the source text of the program. Everything unknown stays empty and neither supports nor refutes a cause.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from detaudit.compare.evidence import RunEvidence
from detaudit.core.axes import AXES, PLAIN
from detaudit.core.model import Divergence, DivergenceKind, Toggle, Verdict
from detaudit.trail.reader import TrailReader

ROUNDING = 1e-3
"""Sums of squares that are closer than this, relatively, are called apart by rounding: one step of a race in float32
stays far below it, another sample or another draw far above."""

MAX_SOURCE = 1 << 20
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Evidence:
    """Signs of one divergence. `size` is `rounding`, `large`, or empty without stats. `facts` are what the runs were
    (see FACTS in `causes`); `absent` those known not to hold. `differs` are the entries in which the manifests of the
    runs differ. `line` is the code that the drill-down named, `source` the program's text."""

    leaf: str = ""
    kind: str = str(DivergenceKind.VALUE)
    step: int = 0
    note: str = ""
    size: str = ""
    drill: str = ""
    operator: str = ""
    line: str = ""
    source: str = ""
    facts: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    differs: frozenset[str] = frozenset()
    toggles: Mapping[str, Toggle] = field(default_factory=dict)

    def removed(self, name: str) -> bool:
        """Whether an axis took the divergence away: in every pair, beside plain pairs that still diverged."""
        tried, plain = self.toggles.get(name), self.toggles.get(PLAIN)
        return bool(tried and tried.pairs and not tried.diverged and plain and plain.diverged and AXES[name].directed)

    def kept(self, name: str) -> bool:
        """Whether the divergence was still there with an axis changed."""
        tried = self.toggles.get(name)
        return bool(tried and tried.diverged)

    def after(self, toggles: Sequence[Toggle]) -> Evidence:
        """The same evidence with the results of experiments."""
        return replace(self, toggles={**self.toggles, **{toggle.name: toggle for toggle in toggles}})


def gather(verdict: Verdict, runs: Sequence[RunEvidence]) -> Evidence:
    """The evidence of a diverged verdict and the runs behind it. Raises AssertionError for any other verdict."""
    first, found = verdict.first_divergence, verdict.explanation
    assert first is not None, "only a divergence has causes"
    trails = [trail for run in runs for trail in run.trails.values()]
    facts, absent = _facts(verdict, trails)
    return Evidence(
        leaf=first.leaf,
        kind=str(first.kind),
        step=first.step,
        note=first.note,
        size=_size(first),
        drill=str(found.kind) if found else "",
        operator=found.operator if found else "",
        line=found.code if found else "",
        source=source_of(verdict.command, found.file if found else ""),
        facts=facts,
        absent=absent,
        differs=frozenset(line.split(":")[0] for line in verdict.manifest_differences),
        toggles={toggle.name: toggle for toggle in found.toggles} if found else {},
    )


def _size(first: Divergence) -> str:
    if first.delta is None or first.kind is not DivergenceKind.VALUE:
        return ""
    scale = max(abs(float(first.run_a)), abs(float(first.run_b)))
    return "rounding" if first.delta <= ROUNDING * scale else "large"


def _facts(verdict: Verdict, trails: Sequence[TrailReader]) -> tuple[frozenset[str], frozenset[str]]:
    """What holds of the runs, and what is known not to. Without a trail nothing is known of a run."""
    known = {"created-files": bool(verdict.created_files)}
    if trails:
        decisive = trails[0].manifest.decisive
        classes = {name.split(".")[0] for layout in trails[0].layouts for name in layout.names}
        known |= {
            "cuda": bool(decisive.get("devices")),
            "ranks": any("rank" in name for run in verdict.runs for name in run.trails),
            "loader": bool(classes & {"batch", "sampler"}),
            "one-thread": decisive.get("threads") == 1,
            "hash-seed-set": decisive.get("env.PYTHONHASHSEED", "random") != "random",
            "flag-on": bool(decisive.get("deterministic_algorithms")),
        }
    return frozenset(key for key, holds in known.items() if holds), frozenset(key for key in known if not known[key])


def source_of(command: Sequence[str], file: str = "") -> str:
    """The code of the program: the scripts that the command names, a package run by -m, the file of the drill-down's
    line. Empty where nothing can be read."""
    words = [word for word in command if word.endswith(".py")]
    if "-m" in command[:-1]:
        base = command[list(command).index("-m") + 1].replace(".", os.sep)
        words += [f"{base}.py", os.path.join(base, "__main__.py")]
    texts = []
    for path in dict.fromkeys([*words, file]):
        try:
            if path and Path(path).stat().st_size <= MAX_SOURCE:
                texts.append(_code(Path(path).read_text(encoding="utf-8", errors="replace")))
        except OSError:
            continue
    return "".join(f"{text.rstrip()}\n" for text in texts)


def _code(text: str) -> str:
    """The code alone, in one spelling: a word in a comment or a docstring is no sign."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
