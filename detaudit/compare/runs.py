"""From the evidence of two runs to a verdict. Never clean for want of evidence.

`judge` reads top to bottom: what was seen to differ decides first; then every way in which nothing was seen (a failed
run, no trail, an unfinished trail, unequal manifests, missing ranks, no common step, no leaf, a leaf without digest)
makes the verdict inconclusive; only what passes all of them is clean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from detaudit.compare.evidence import RunEvidence, aligned, last_step
from detaudit.compare.first import Comparison, compare_trails, was_asked
from detaudit.core.model import DivergenceKind, Finding, Outcome, StepKind, Verdict
from detaudit.core.names import Selection
from detaudit.trail.manifest import differences
from detaudit.trail.reader import TrailReader

SOUND_ENDS = frozenset({"complete", "step limit", "os._exit(0)"})
"""What the end note of a run that ended well may say. Anything else (an exception, a recorder that gave up) leaves the
rest of the run unseen, so that it can never be clean."""


@dataclass
class _Judgement:
    """What the ranks of a pair showed, gathered before anything is decided."""

    finding: Finding | None = None
    steps_by_rank: list[int] = field(default_factory=list)
    leaves: int = 0
    unsupported: set[str] = field(default_factory=set)
    manifest_differences: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Steps that were compared on every rank."""
        return min(self.steps_by_rank, default=0)


def judge(a: RunEvidence, b: RunEvidence, selection: Selection, allow_differences: bool = False) -> Verdict:
    """The verdict over a pair of runs. With `allow_differences` unequal manifests are an override, not a refusal."""
    a, b = aligned(a, b)
    seen = _compare_ranks(a, b, selection)
    verdict = Verdict(
        outcome=Outcome.INCONCLUSIVE,
        reason="",
        steps_compared=seen.steps,
        leaves_compared=seen.leaves,
        runs=(a.report, b.report),
        pair=(a.report.label, b.report.label),
        manifest_differences=tuple(seen.manifest_differences),
        selection=selection.describe(),
        warnings=tuple(warnings(a, b, selection)),
    )
    if allow_differences and seen.manifest_differences:
        verdict = replace(verdict, overrides=("unequal manifests were allowed by the user",))
    elif seen.manifest_differences:
        return replace(verdict, reason=_not_comparable(seen.manifest_differences))
    finding = seen.finding
    if finding is not None and _is_evidence(finding, a, b):
        return replace(
            verdict,
            outcome=Outcome.DIVERGED,
            reason=_first_difference(finding),
            first_divergence=finding.first,
            diverging_leaves=tuple(finding.diverging),
            equal_before=finding.equal_before,
        )
    refusal = _why_not_clean(a, b, seen, selection)
    if refusal:
        return replace(verdict, reason=refusal)
    steps = f"{seen.steps} step{'s' if seen.steps != 1 else ''}"
    return replace(verdict, outcome=Outcome.CLEAN, reason=f"bit-exact over {steps} and {seen.leaves} leaves")


def _compare_ranks(a: RunEvidence, b: RunEvidence, selection: Selection) -> _Judgement:
    seen = _Judgement()
    common = [name for name in a.trails if name in b.trails]
    for name in common:
        left, right = a.trails[name], b.trails[name]
        left.verify_chain()
        right.verify_chain()
        rank = name if len(a.trails) > 1 or len(b.trails) > 1 else ""
        for line in differences(left.manifest, right.manifest):
            if line not in seen.manifest_differences:
                seen.manifest_differences.append(line)
        _merge(seen, compare_trails(left, right, selection, rank))
    return seen


def _merge(seen: _Judgement, comparison: Comparison) -> None:
    """Ranks are concurrent: the first divergence is the earliest step, then the earliest place in it."""
    seen.steps_by_rank.append(comparison.steps_compared)
    seen.leaves += comparison.leaves_compared
    seen.unsupported.update(comparison.unsupported)
    new, old = comparison.finding, seen.finding
    if new is None:
        return
    if old is None or (new.first.step, new.first.order) < (old.first.step, old.first.order):
        first, other = new, old
    else:
        first, other = old, new
    same_step = other is not None and other.first.step == first.first.step
    rest = tuple(other.diverging) if other is not None and same_step else ()
    seen.finding = replace(first, diverging=(*first.diverging, *rest))


def _is_evidence(finding: Finding, a: RunEvidence, b: RunEvidence) -> bool:
    """A step that one side lacks proves nothing when that run failed or its trail broke off; unequal values do."""
    first = finding.first
    if not (first.kind is DivergenceKind.MISSING and first.leaf == "step"):
        return True
    return not any(_failure(run) or _unfinished(run) for run in (a, b))


def _why_not_clean(a: RunEvidence, b: RunEvidence, seen: _Judgement, selection: Selection) -> str:
    unusable = why_unusable(a) or why_unusable(b)
    if unusable:
        return unusable
    if set(a.trails) != set(b.trails):
        left, right = (", ".join(run.trails) for run in (a, b))
        return f"the runs left trails of different processes: A {left}; B {right}"
    if not seen.steps:
        return "the runs have no step in common"
    if not seen.leaves:
        chosen = selection.describe()
        return f"no leaf matches --leaves {chosen!r}" if chosen else "the trails hold no leaf"
    if seen.unsupported:
        names = "; ".join(sorted(seen.unsupported)[:5])
        return (
            f"{len(seen.unsupported)} leaves could not be digested ({names}); "
            "leave them out by name with --leaves '!NAME' to have the rest judged"
        )
    return ""


def why_unusable(run: RunEvidence) -> str:
    """Why a run by itself cannot carry a clean verdict: it failed, recorded nothing, or its trail broke off. Empty for
    a sound run."""
    return _failure(run) or _defective(run) or _nothing(run) or _unfinished(run)


def _failure(run: RunEvidence) -> str:
    status = run.report.exit_status
    if status in (0, None):
        return ""
    ended = f"was killed by signal {-status}" if status < 0 else f"failed with exit status {status}"
    last = run.report.last_step
    where = "before its first step" if last is None else f"after step {last}"
    return f"run {run.report.label} {ended} {where}"


def _defective(run: RunEvidence) -> str:
    return f"run {run.report.label} was not recorded whole: {'; '.join(run.defects)}" if run.defects else ""


def _nothing(run: RunEvidence) -> str:
    if run.trails:
        return ""
    return f"run {run.report.label} recorded nothing: {run.missing_reason or 'no trail was written'}"


def _unfinished(run: RunEvidence) -> str:
    for name, trail in run.trails.items():
        torn = f", {trail.dropped_bytes} bytes of a torn tail were dropped" if trail.dropped_bytes else ""
        step = last_step(trail)
        last = "no step" if step is None else f"step {step}"
        if not trail.outcome:
            return (
                f"the trail {name} of run {run.report.label} breaks off after {last}{torn}: "
                "its process was killed, or its disk was full; run it again"
            )
        if trail.outcome not in SOUND_ENDS:
            return f"the trail {name} of run {run.report.label} ends after {last}: {trail.outcome}"
    return ""


def _not_comparable(lines: Sequence[str]) -> str:
    return "the runs are not comparable: " + "; ".join(lines) + " (--allow-differences compares them all the same)"


def _first_difference(finding: Finding) -> str:
    first = finding.first
    by = f", {first.optimizer}" if first.optimizer else ""
    rank = f" on {first.rank}" if first.rank else ""
    what = {
        DivergenceKind.VALUE: "differs",
        DivergenceKind.MISSING: "exists in one run only",
        DivergenceKind.SHAPE: "has another shape",
        DivergenceKind.DTYPE: "has another dtype",
    }[first.kind]
    note = f" ({first.note})" if first.note else ""
    return f"the runs first differ at step {first.step}{by}{rank}: {first.leaf} {what}{note}"


def warnings(a: RunEvidence, b: RunEvidence, selection: Selection) -> list[str]:
    """What a reader of the verdict should know beside it, each line once."""
    lines: list[str] = []
    for run in (a, b):
        for name, trail in run.trails.items():
            lines.extend(_trail_warnings(name if len(run.trails) > 1 else "", trail))
        lines.extend(run.remarks)
        failure = _failure(run)
        if failure:
            lines.append(failure)
    if a.stdout_digest and b.stdout_digest and a.stdout_digest != b.stdout_digest:
        lines.append("what the runs wrote to stdout differs")
    lines.extend(_left_out(a, b))
    if selection.include or selection.exclude:
        lines.append(f"only leaves matching {selection.describe()} were compared")
    return list(dict.fromkeys(lines))


def _left_out(a: RunEvidence, b: RunEvidence) -> list[str]:
    """Steps that only one recorder was asked for, so that they could not be compared."""
    pairs = [(a.trails[name], b.trails[name]) for name in a.trails if name in b.trails]
    alone = {
        step
        for left, right in pairs
        for step in set(left.steps) ^ set(right.steps)
        if not (was_asked(left, step) and was_asked(right, step))
    }
    if not alone:
        return []
    return [f"{len(alone)} steps were recorded in one run only (other --every or --steps) and not compared"]


def _trail_warnings(name: str, trail: TrailReader) -> list[str]:
    where = f"{name}: " if name else ""
    lines = []
    for note in trail.notes:
        match note["note"]:
            case "nonfinite":
                lines.append(f"{where}{note['leaf']} is {note['what']} at step {note['step']}, first of the run")
            case "warning":
                lines.append(f"{where}{note['text']}")
    if any(layout.kind is StepKind.BACKWARD for layout in trail.layouts):
        lines.append(f"{where}no optimizer in this process: each backward call was taken as one step")
    if trail.dropped_bytes:
        lines.append(f"{where}{trail.dropped_bytes} bytes of a torn tail were dropped")
    return lines
