"""Toggle experiments: the pair is repeated with one thing changed, and what that tells of the cause.

`explained` reads top to bottom: `suggested` picks one to three axes from the catalogue's best fits, `_until_one_holds`
tries them in turn (or `_all` tries every axis), `sentences` words the results, `rank` names the cause. Running a pair
is the caller's business; here is what the answers mean.

An axis that takes the divergence away says something only if it would have come otherwise: a file left by an earlier
run, or a race that rarely fires, makes any pair equal. So plain pairs are repeated beside it, as a control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from detaudit.compare.evidence import RunEvidence
from detaudit.core.axes import AXES, PLAIN
from detaudit.core.model import Divergence, Explanation, ExplanationKind, Toggle, Verdict
from detaudit.explain.causes import EXPERIMENT, rank, ranked
from detaudit.explain.evidence import Evidence, gather
from detaudit.explain.rates import in_words

MOST_SUGGESTED = 3
SUGGESTED_PAIRS = 2
"""Pairs of an axis that a plain check tries. An axis with which the divergence is still there needs only one."""

CONTROL_PAIRS = 1
MARK = "experiment: "
"""Begins every sentence of ours, so that a later call can replace them."""

BEFORE = {"deterministic-fill": "deterministic"}
"""An axis that means nothing without the result of another."""

INAPPLICABLE = {
    "threads-1": ("one-thread", "the runs had one thread already"),
    "hash-seed": ("hash-seed-set", "PYTHONHASHSEED was set already"),
}


@dataclass(frozen=True)
class Pair:
    """How one repeated pair ended: `diverged` is None when it says nothing, and `said` is then the reason; `at` is its
    own first divergence."""

    diverged: bool | None
    said: str = ""
    at: Divergence | None = None


RunPair = Callable[[str], Pair]
"""Repeats the pair with the named axis changed (`plain`: with none)."""


@dataclass(frozen=True)
class Trial:
    """All pairs of one axis."""

    name: str
    pairs: tuple[Pair, ...]

    @property
    def toggle(self) -> Toggle:
        """The counts, over the pairs that say something."""
        told = [pair.diverged for pair in self.pairs if pair.diverged is not None]
        return Toggle(self.name, len(told), sum(told))

    @property
    def holds(self) -> bool:
        return bool(self.toggle.pairs) and not self.toggle.diverged


def explained(
    verdict: Verdict,
    runs: Sequence[RunEvidence],
    run_pair: RunPair,
    pairs: int = SUGGESTED_PAIRS,
    all_axes: bool = False,
) -> Verdict:
    """The diverged verdict with its toggles and its cause. With `all_axes` every axis is tried, `pairs` times; else the
    suggested ones, until one holds. Raises AssertionError for a verdict without a divergence."""
    evidence = gather(verdict, runs)
    if all_axes:
        trials = _all(evidence, run_pair, pairs)
    else:
        trials = _until_one_holds(evidence, suggested(evidence), run_pair, min(pairs, SUGGESTED_PAIRS))
    evidence = replace(evidence, toggles={}).after([trial.toggle for trial in trials])
    causes = rank(evidence)
    found = verdict.explanation or Explanation(
        ExplanationKind.UNPROVEN, evidence.step, evidence=("the operators were not traced",)
    )
    told = [line for line in found.evidence if not line.startswith(MARK)]
    told += [MARK + line for line in sentences(evidence, trials)]
    toggles = tuple(trial.toggle for trial in trials)
    found = replace(found, evidence=tuple(told), toggles=toggles, cause=causes[0] if causes else None)
    return replace(verdict, explanation=found)


def suggested(evidence: Evidence) -> tuple[str, ...]:
    """One to three axes that the best-fitting causes name; empty when no cause that an axis could prove fits at all."""
    fits = [fit for fit in ranked(evidence) if fit.entry.when.removed_by]
    near = [fit for fit in fits if 2 * fit.score >= fits[0].score]
    names: list[str] = []
    for fit in near:
        axes = list(fit.entry.when.removed_by)
        if evidence.drill != ExplanationKind.OPERATOR and "threads-1" in axes:
            # Without an operator caught in the act the flag proves nothing, and one thread does.
            axes.sort(key=lambda name: name != "threads-1")
        for name in axes:
            names += [BEFORE[name], name] if name in BEFORE else [name]
    usable = [name for name in dict.fromkeys(names) if not why_not(name, evidence)]
    return tuple(usable[:MOST_SUGGESTED])


def why_not(name: str, evidence: Evidence) -> str:
    """Why an axis cannot change anything here; empty when it can."""
    fact, reason = INAPPLICABLE.get(name, ("", ""))
    if fact in evidence.facts:
        return reason
    return "no DataLoader was used" if name == "workers-0" and "loader" in evidence.absent else ""


def _until_one_holds(evidence: Evidence, names: Sequence[str], run_pair: RunPair, pairs: int) -> list[Trial]:
    """Stops at the first axis that makes a cause's support an experiment."""
    trials: list[Trial] = []
    for name in names:
        trial = _try(name, run_pair, pairs, stop=True)
        trials.append(trial)
        if not trial.holds:
            continue
        if not any(known.name == PLAIN for known in trials):
            trials.append(_try(PLAIN, run_pair, CONTROL_PAIRS, stop=False))
            if not trials[-1].toggle.diverged:
                break  # no axis can show anything while plain pairs are equal
        causes = rank(evidence.after([trial.toggle for trial in trials]))
        if causes and causes[0].support == EXPERIMENT:
            break
    return trials


def _all(evidence: Evidence, run_pair: RunPair, pairs: int) -> list[Trial]:
    names = [PLAIN, *(name for name in AXES if not why_not(name, evidence))]
    return [_try(name, run_pair, pairs, stop=False) for name in names]


def _try(name: str, run_pair: RunPair, pairs: int, stop: bool) -> Trial:
    """The pairs of an axis. A pair that says nothing ends it: the next would fail alike."""
    done: list[Pair] = []
    for _ in range(pairs):
        done.append(run_pair(name))
        if done[-1].diverged is None or (stop and done[-1].diverged):
            break
    return Trial(name, tuple(done))


def sentences(evidence: Evidence, trials: Sequence[Trial]) -> Iterator[str]:
    """What the experiments showed and what follows from it, a sentence each."""
    for trial in trials:
        varies = AXES[trial.name].varies if trial.name != PLAIN else "with nothing changed"
        unusable = [pair.said for pair in trial.pairs if pair.diverged is None]
        if unusable:
            yield f"{varies}, a pair said nothing: {unusable[0]}"
        if trial.toggle.pairs:
            yield f"{varies}, {in_words(trial.toggle.diverged, trial.toggle.pairs)}{_direction(evidence, trial)}"
            yield from _beneath(evidence, trial, varies)
    plain = evidence.toggles.get(PLAIN)
    if plain and plain.pairs and not plain.diverged:
        yield "the plain pairs beside them were equal too, so what the others showed proves nothing"
    yield from _about_fill(evidence)


def _direction(evidence: Evidence, trial: Trial) -> str:
    plain = evidence.toggles.get(PLAIN)
    if trial.name == PLAIN or AXES[trial.name].directed or not (plain and plain.pairs):
        return ""
    rate, usual = trial.toggle.diverged / trial.toggle.pairs, plain.diverged / plain.pairs
    word = "as often as" if rate == usual else "more often than" if rate > usual else "less often than"
    return f", {word} plain; it only moves timing, which hides some races and provokes others"


def _beneath(evidence: Evidence, trial: Trial, varies: str) -> Iterator[str]:
    """An axis that takes one divergence away may uncover another."""
    places = [pair.at for pair in trial.pairs if pair.at is not None]
    if trial.name == PLAIN or not places or not AXES[trial.name].directed:
        return
    if all(_class(place.leaf) != _class(evidence.leaf) for place in places):
        yield (
            f"{varies}, the runs first differ at {places[0].leaf} of step {places[0].step}, no longer at "
            f"{evidence.leaf}: a second cause may lie beneath, or the place is chance"
        )


def _class(leaf: str) -> str:
    return leaf.split(".")[0]


def _about_fill(evidence: Evidence) -> Iterator[str]:
    """What the two flag experiments say together (pytorch#193317)."""
    if evidence.kept("deterministic") and evidence.removed("deterministic-fill"):
        yield "only memory fill takes it away: a value is read that nobody has written"
    elif evidence.removed("deterministic") and evidence.removed("deterministic-fill"):
        yield "the flag takes it away without memory fill as well, so it is not the fill that does it"
    elif evidence.removed("deterministic") and evidence.drill != ExplanationKind.OPERATOR:
        yield "the deterministic flag with memory fill off takes it away; by itself that proves no race"
