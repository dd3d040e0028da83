"""The drill-down: a diverged pair is run again with the operators of a few steps traced, until a pair answers.

`drill` reads top to bottom. `_run_pair` runs both with the same window, each with its own trail and stats and
the bytes of the leaf that diverged first the last time (`leafbytes`). A pair answers only for its own first divergence,
and only when that lies inside the window it was traced in: then every leaf before it is equal by the very meaning of
first. Otherwise the window moves to where this pair diverged. A race that
first shows at another step so never yields an operator of the wrong one. When no pair answers, the result is
`not_reproduced`, with what was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from detaudit.compare.evidence import RunEvidence
from detaudit.compare.runs import judge
from detaudit.core import env
from detaudit.core.errors import UnreadableError
from detaudit.core.model import Divergence, DivergenceKind, Explanation, ExplanationKind, Verdict
from detaudit.core.names import Selection
from detaudit.explain import leafbytes, tracefile
from detaudit.explain.classify import classify

Spawn = Callable[[str, env.Settings], RunEvidence]
"""Runs the audited command once, recorded as told, into a directory of its own."""

Progress = Callable[[str], None]

SPARE_STEPS = 50
"""How far a traced pair runs on behind its window: a race that shows later tells where to look next."""

STEPS_BACK = 16
"""How far the window moves back when something unequal is older than it."""


@dataclass(frozen=True)
class Plan:
    """What to explain: the first divergence of the audit, the last step that both its runs closed, the settings they
    were recorded with, and at most how many pairs to run."""

    first: Divergence
    last_step: int | None
    settings: env.Settings
    pairs: int = 3


@dataclass(frozen=True)
class _Answer:
    """What one traced pair said. `at` is its own first divergence, `window` where to look next."""

    explanation: Explanation | None
    at: Divergence | None
    said: str
    window: tuple[int, int]
    final: bool = False
    """Whether another pair would say the same."""


def drill(plan: Plan, spawn: Spawn, progress: Progress = lambda line: None) -> Explanation:
    """The explanation of a divergence. Runs at most `plan.pairs` traced pairs; one that decides ends it."""
    window = _window(plan.first, plan.settings.every)
    leaf = plan.first.leaf
    answers: list[_Answer] = []
    for number in range(1, plan.pairs + 1):
        progress(f"drill-down, pair {number} of at most {plan.pairs}: steps {window[0]} to {window[1]} traced")
        answer = _run_pair(plan, spawn, window, number, leaf)
        answers.append(answer)
        progress(f"drill-down, pair {number}: {answer.said}")
        if answer.explanation is not None and answer.explanation.kind is not ExplanationKind.UNPROVEN:
            return _with_rates(answer.explanation, answers)
        if answer.final:
            break
        window = answer.window
        leaf = answer.at.leaf if answer.at is not None else leaf
    unproven = next((answer.explanation for answer in reversed(answers) if answer.explanation is not None), None)
    if unproven is not None:
        return _with_rates(unproven, answers)
    found = Explanation(ExplanationKind.NOT_REPRODUCED, plan.first.step, evidence=_said(answers))
    return replace(found, rate=_rate(answers))


def _window(first: Divergence, every: int) -> tuple[int, int]:
    """The diverging step and the one before it, or all that were left out of the trail before it."""
    return max(0, first.step - max(1, every)), first.step


def _run_pair(plan: Plan, spawn: Spawn, window: tuple[int, int], number: int, leaf: str) -> _Answer:
    settings = replace(plan.settings, every=1, stats=True, trace=window, steps=_limit(plan, window))
    settings = leafbytes.keeping(settings, leaf)
    runs = [spawn(f"pair{number}-{label}", settings) for label in "AB"]
    verdict = judge(runs[0], runs[1], Selection.parse(plan.settings.leaves))
    first = verdict.first_divergence
    if first is None:
        return _Answer(None, None, _no_divergence(verdict, runs, window), window)
    if not window[0] <= first.step <= window[1]:
        said = (
            f"first diverged at step {first.step} ({first.leaf}), outside the traced steps {window[0]} to {window[1]}"
        )
        return _Answer(None, first, said, _moved(window, _window(first, 1)))
    places = _directories(runs)
    try:
        chosen, found, traces = _classified(runs, places, verdict, first)
        values = leafbytes.told(places, chosen, chosen.rank or next(iter(runs[0].trails)))
    except UnreadableError as error:
        values = leafbytes.told(places, first, first.rank or next(iter(runs[0].trails)))
        unproven = Explanation(ExplanationKind.UNPROVEN, first.step, evidence=(str(error), *values))
        return _Answer(unproven, first, f"diverged at step {first.step}, but {error}", window, final=True)
    shown = f"diverged at step {first.step} ({first.leaf}): {found.kind}"
    return _Answer(_told(found, chosen, verdict, traces, values), first, shown, _further_back(window))


def _classified(
    runs: list[RunEvidence], places: list[Path], verdict: Verdict, first: Divergence
) -> tuple[Divergence, Explanation, list[tracefile.Trace]]:
    """The first divergence of a rank, its explanation and traces: those of the rank that diverged first. What reached
    that one from elsewhere may be a fault of another that diverged in the same step (collectives carry it over within
    a step), so where another's operator is proven by re-execution, that rank answers."""
    answers = []
    for one in _by_rank(verdict, first):
        traces = [_trace_of(run, place, one) for run, place in zip(runs, places, strict=True)]
        answers.append((one, classify(traces[0], traces[1], one), traces))
        if answers[0][1].kind not in (ExplanationKind.OUTSIDE, ExplanationKind.UNPROVEN):
            break
    mine = answers[0]
    chosen, found, traces = next((it for it in answers if it[1].kind is ExplanationKind.OPERATOR), mine)
    if chosen is not first:
        passed = f"{first.rank}, whose {first.leaf} differs in the same step, took over a value that it did not make"
        found = replace(found, evidence=(*found.evidence, f"{passed} ({mine[1].kind})"))
    return chosen, found, traces


def _by_rank(verdict: Verdict, first: Divergence) -> list[Divergence]:
    """`first`, and the first divergence in the same step of each other rank."""
    others: dict[str, Divergence] = {first.rank: first}
    for one in verdict.diverging_leaves:
        if one.step == first.step and one.rank not in others:
            others[one.rank] = one
    return list(others.values())


def _limit(plan: Plan, window: tuple[int, int]) -> int:
    """After how many steps a traced pair may stop; 0 runs it to its end, as what follows the last update demands."""
    asked = plan.settings.steps
    if plan.last_step is None or window[1] > plan.last_step:
        return asked
    enough = window[1] + 1 + SPARE_STEPS
    return min(asked, enough) if asked else enough


def _no_divergence(verdict: Verdict, runs: list[RunEvidence], window: tuple[int, int]) -> str:
    failed = [run.report for run in runs if run.report.exit_status]
    if failed:
        return f"failed while it was traced, run {failed[0].label[-1]} with exit status {failed[0].exit_status}"
    last = min((run.report.last_step for run in runs if run.report.last_step is not None), default=None)
    if last is None or last < window[0] - 1:
        reached = "no step" if last is None else f"step {last}"
        return f"the traced runs only reached {reached}, the traced steps begin at {window[0]}"
    return f"did not diverge: {verdict.reason}"


def _directories(runs: list[RunEvidence]) -> list[Path]:
    return [next(iter(run.trails.values())).path.parent for run in runs]


def _trace_of(run: RunEvidence, directory: Path, first: Divergence) -> tracefile.Trace:
    """The trace of the process whose trail diverged."""
    name = first.rank or next(iter(run.trails))
    path = directory / (name + tracefile.SUFFIX)
    if not path.exists():
        broken = directory / "trace-error.txt"
        why = broken.read_text().strip() if broken.exists() else "its process traced no step"
        raise UnreadableError(f"{path} was not written: {why}")
    return tracefile.read(path)


def _told(
    found: Explanation,
    first: Divergence,
    verdict: Verdict,
    traces: list[tracefile.Trace],
    values: tuple[str, ...],
) -> Explanation:
    """The explanation with what makes its pair count, and what was noted while it was traced."""
    what = {
        DivergenceKind.MISSING: "exists in one run only",
        DivergenceKind.VALUE: "differs",
    }.get(first.kind, f"has another {first.kind}")
    same = first is verdict.first_divergence
    before = f"the {verdict.equal_before} leaves of that step before it are equal"
    where = f"step {first.step}" + (f" in {first.rank}" if first.rank else "")
    said = f"the traced pair first diverged at {where}: {first.leaf} {what}" + (
        f"; {before}" if verdict.equal_before and same else ""
    )
    notes = dict.fromkeys(note for trace in traces for note in trace.notes)
    return replace(found, evidence=(*found.evidence, said, *values, *notes))


def _moved(window: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Where to look after a pair that diverged elsewhere: in both places when they are near, for a race may show in
    either."""
    both = (min(window[0], other[0]), max(window[1], other[1]))
    return both if both[1] - both[0] <= STEPS_BACK else other


def _further_back(window: tuple[int, int]) -> tuple[int, int]:
    return max(0, window[0] - STEPS_BACK), window[1]


def _with_rates(found: Explanation, answers: list[_Answer]) -> Explanation:
    earlier = tuple(f"an earlier traced pair {answer.said}" for answer in answers[:-1])
    rate = "; ".join(filter(None, [found.rate, _rate(answers)]))
    return replace(found, evidence=(*found.evidence, *earlier), rate=rate)


def _rate(answers: list[_Answer]) -> str:
    diverged = sum(answer.at is not None for answer in answers)
    return f"{diverged} of {len(answers)} traced pairs diverged"


def _said(answers: list[_Answer]) -> tuple[str, ...]:
    return tuple(f"traced pair {number} {answer.said}" for number, answer in enumerate(answers, start=1))
