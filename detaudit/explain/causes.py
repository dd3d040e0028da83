"""Ranks the causes of the catalogue by what speaks for them. Loads no torch.

`rank` reads top to bottom: `plausible` leaves out what cannot be; `weigh` holds every sign of a signature against the
evidence; the strongest kind of support comes first, then the number and weight of the signs.

Support, and no more is ever claimed: `experiment` (an axis of its own took the divergence away while plain pairs still
diverged), `signature` (several independent signs fit and none contradicts), `weak` (anything less). What speaks against
a cause, and how thin the evidence is, stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from detaudit.core.axes import AXES, PLAIN
from detaudit.core.model import Cause, ExplanationKind
from detaudit.explain.catalogue import Entry, Signature, catalogue
from detaudit.explain.evidence import Evidence
from detaudit.explain.rates import in_words

EXPERIMENT, SIGNATURE, WEAK = "experiment", "signature", "weak"
SUPPORT = (EXPERIMENT, SIGNATURE, WEAK)

MANY_PAIRS = 30
"""From here on the interval of "none of n" ends below about 12 %, and its figures speak for themselves."""

FILLS = frozenset({"deterministic-fill"})
FLAG = frozenset({"deterministic"})


@dataclass
class Fit:
    """How an entry fits: the signs that match with their weights, and the objections."""

    entry: Entry
    signs: dict[str, int] = field(default_factory=dict)
    against: list[str] = field(default_factory=list)
    contradicted: bool = False
    proven_by: str = ""

    @property
    def score(self) -> int:
        return sum(self.signs.values())

    @property
    def support(self) -> str:
        if self.proven_by and not self.contradicted:
            return EXPERIMENT
        signs = {name for name, weight in self.signs.items() if weight > 0} - {"leaf", "kind", "step"}
        return SIGNATURE if signs and not self.contradicted else WEAK

    def sign(self, name: str, weight: int, objection: str = "") -> None:
        """A sign that fits (positive weight) or does not; an objection of -3 or more contradicts the cause."""
        self.signs[name] = weight
        if objection:
            self.against.append(objection)
        self.contradicted |= weight <= -3


def rank(evidence: Evidence, entries: Sequence[Entry] | None = None) -> list[Cause]:
    """The causes that the evidence supports, best first; empty when none of the catalogue fits."""
    fits = ranked(evidence, entries)
    return [_cause(fit, evidence, fits) for fit in fits]


def ranked(evidence: Evidence, entries: Sequence[Entry] | None = None) -> list[Fit]:
    """The fits behind `rank`. Ties are broken by the order of the catalogue."""
    chosen = catalogue() if entries is None else entries
    fits = [weigh(entry, evidence) for entry in chosen if plausible(entry, evidence)]
    return sorted(
        (fit for fit in fits if fit.score > 0 and _anchored(fit)),
        key=lambda fit: (SUPPORT.index(fit.support), -fit.score),
    )


def plausible(entry: Entry, evidence: Evidence) -> bool:
    """Whether a cause can be at work at all: a cause between machines needs manifests that differ or nothing can have
    come of it, one that shows no divergence cannot explain one, and facts known to be otherwise exclude it."""
    when = entry.when
    if entry.scope == "silent" or set(when.needs) & evidence.absent or set(when.without) & evidence.facts:
        return False
    return entry.scope != "machines" or bool(set(when.differs) & evidence.differs)


def _anchored(fit: Fit) -> bool:
    """A cause needs one sign of the divergence itself; words in the source alone are none."""
    return any(fit.signs.get(name, 0) > 0 for name in ("leaf", "operator", "differs", "toggles"))


def weigh(entry: Entry, evidence: Evidence) -> Fit:
    """Every sign of a signature against the evidence."""
    fit, when = Fit(entry), entry.when
    _place(fit, when, evidence)
    _operator(fit, when, evidence)
    _words(fit, when, evidence)
    if when.needs and set(when.needs) <= evidence.facts:
        fit.sign("needs", 2 if "created-files" in when.needs else 1)
    if set(when.differs) & evidence.differs:
        fit.sign("differs", 4)
    _toggles(fit, when, evidence)
    return fit


def _place(fit: Fit, when: Signature, evidence: Evidence) -> None:
    if when.leaf and evidence.leaf:
        if any(fnmatchcase(evidence.leaf, glob) for glob in when.leaf):
            fit.sign("leaf", 2)
        else:
            fit.sign("leaf", -3, f"the first leaf is {evidence.leaf}, where {' or '.join(when.leaf)} is usual")
    if evidence.kind not in (when.kind or ("value", evidence.kind)):
        fit.sign("kind", -3, f"the leaf differs by {evidence.kind}, not by {' or '.join(when.kind)}")
    elif when.kind and evidence.kind != "value":
        fit.sign("kind", 2)
    if when.step:
        fits = (evidence.step == 0) == (when.step == "first")
        usual = "at the first step" if when.step == "first" else "after some steps"
        fit.sign("step", 1 if fits else -2, "" if fits else f"it shows at step {evidence.step}, usual is {usual}")
    if when.size and evidence.size:
        fits = evidence.size in when.size
        fit.sign("size", 1 if fits else -2, "" if fits else f"the values are {_APART[evidence.size]}")
    if any(fnmatchcase(evidence.note, glob) for glob in when.note):
        fit.sign("note", 2)


_APART = {"rounding": "apart by rounding only", "large": "far apart"}
_UNDECIDED = (ExplanationKind.NOT_REPRODUCED, ExplanationKind.UNPROVEN)


def _operator(fit: Fit, when: Signature, evidence: Evidence) -> None:
    if evidence.drill and when.drill:
        if evidence.drill in when.drill:
            fit.sign("drill", 2)
        elif evidence.drill not in _UNDECIDED:
            fit.sign("drill", -3, f"the drill-down found {evidence.drill}, not {' or '.join(when.drill)}")
    # Any other kind names the operator at which a difference came in, not one that made it.
    if evidence.operator and when.operator and evidence.drill in ("", ExplanationKind.OPERATOR):
        if any(fnmatchcase(evidence.operator, glob) for glob in when.operator):
            fit.sign("operator", 4)
        elif evidence.drill == ExplanationKind.OPERATOR:
            fit.sign("operator", -4, f"the operator is {evidence.operator}")


def _words(fit: Fit, when: Signature, evidence: Evidence) -> None:
    """What the code says: the line that the drill-down named weighs more than the rest of the program."""
    if any(re.search(pattern, evidence.line) for pattern in when.mentions):
        fit.sign("line", 3)
    elif any(re.search(pattern, evidence.source) for pattern in when.mentions):
        fit.sign("source", 2)
    elif when.mentions and evidence.source:
        fit.sign("source", -1, "the program's own code does not show it (an imported module may)")


def _toggles(fit: Fit, when: Signature, evidence: Evidence) -> None:
    removed = [name for name in when.removed_by if evidence.removed(name)]
    kept = [name for name in when.removed_by if evidence.kept(name)]
    refuted = [name for name in when.kept_by if evidence.removed(name)]
    proof = next((name for name in removed if _proves(name, evidence)), "")
    if refuted:
        fit.sign("toggles", -6, f"it was gone {_varied(refuted)}, which does not touch this cause")
    elif proof:
        fit.proven_by = proof
        fit.sign("toggles", 8)
    elif removed:
        fit.sign("toggles", 2, _unproven(removed[0]))
    elif kept:
        fit.sign("toggles", -4, f"it was still there {_varied(kept)}")


def _proves(name: str, evidence: Evidence) -> bool:
    """The flag changes kernels and, with fill on, memory; so alone it proves neither (pytorch#193317). Fill off, it
    proves a kernel that the drill-down caught or that one thread cures as well; fill on, it proves a read of
    uninitialised memory if the divergence is there with fill off."""
    if name in FLAG:
        return evidence.drill == ExplanationKind.OPERATOR or evidence.removed("threads-1")
    return name not in FILLS or evidence.kept("deterministic")


def _unproven(name: str) -> str:
    if name in FILLS:
        return "only the flag with memory fill took it away, which a kernel's race would explain as well"
    return "the deterministic flag alone proves no race: it changes kernels and allocation at once"


def _varied(names: Sequence[str]) -> str:
    return " and ".join(AXES[name].varies for name in names)


def _cause(fit: Fit, evidence: Evidence, fits: Sequence[Fit]) -> Cause:
    lines = [*fit.against, *_thinness(fit, evidence), *_rivals(fit, fits)]
    entry = fit.entry
    return Cause(entry.id, entry.title, entry.fix, "; ".join(lines), fit.support)


def _thinness(fit: Fit, evidence: Evidence) -> Iterator[str]:
    """How far the support carries."""
    if fit.support == EXPERIMENT:
        proof, plain = _counted(fit.proven_by, evidence), _counted(PLAIN, evidence)
        few = "few pairs: " if evidence.toggles[fit.proven_by].pairs < MANY_PAIRS else ""
        yield f"{few}{AXES[fit.proven_by].varies} {proof}, with nothing changed {plain}"
    elif fit.support == SIGNATURE:
        yield "no experiment confirms it"
    else:
        matched = [name for name, weight in fit.signs.items() if weight > 0]
        yield f"thin evidence: only {' and '.join(_SIGNS[name] for name in matched)} fits"
    if fit.entry.scope == "resume":
        yield "it takes a resumed run"


_SIGNS = {
    "leaf": "the leaf",
    "kind": "the kind of difference",
    "step": "the step",
    "size": "the size of the difference",
    "note": "the note",
    "drill": "the kind of finding",
    "operator": "the operator",
    "line": "the line",
    "source": "a word in the source",
    "needs": "what the runs were",
    "differs": "the manifest",
    "toggles": "a toggle",
}


def _counted(name: str, evidence: Evidence) -> str:
    toggle = evidence.toggles[name]
    return in_words(toggle.diverged, toggle.pairs)


def _rivals(fit: Fit, fits: Sequence[Fit]) -> Iterator[str]:
    """Other causes with the same support and nearly the same signs: the ranking between them means little."""
    rivals = [
        other.entry.id
        for other in fits
        if other is not fit and other.support == fit.support and other.score >= fit.score - 1
    ]
    if rivals:
        yield f"{', '.join(rivals[:3])} fit{'s' if len(rivals) == 1 else ''} about as well"
