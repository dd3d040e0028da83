"""Two dumps against each other, buffer by buffer, and what a hypothesis set makes of it.

`compare_dumps` reads top to bottom: `_refuse_strangers` (other programs, other requests), `_compare_process` (each leaf
at each dumped step), `_classified` (the hypotheses, over the process that parts first), `_verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from detaudit.compare.tensors import Buffer, compare_buffers
from detaudit.core.buffers import BufferComparison, BufferStatus, DumpVerdict
from detaudit.core.errors import NotComparableError
from detaudit.core.model import Outcome
from detaudit.core.names import merged_order, occurrence
from detaudit.dump.manifest import Entry, Header
from detaudit.dump.reader import DumpReader
from detaudit.explain.hypotheses import BufferDeclaration, HypothesisSet
from detaudit.explain.weigh import Classification, classify

COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NOTHING = Classification("", "", ())

Placed = dict[tuple[int, str], Entry]
"""Entries by step and leaf."""


def compare_dumps(
    a: Mapping[str, DumpReader],
    b: Mapping[str, DumpReader],
    declared: HypothesisSet | None = None,
    allow_differences: bool = False,
) -> DumpVerdict:
    """Compare the dumps of two runs, given by process. Raises UnreadableError for damaged bytes, NotComparableError for
    dumps of different programs or requests (unless `allow_differences`) or that hold none of the declared buffers."""
    warnings = _refuse_strangers(a, b, allow_differences)
    buffers: list[BufferComparison] = []
    for process in merged_order(list(a), list(b)):
        if process in a and process in b:
            buffers.extend(_compare_process(process, a[process], b[process], declared))
        else:
            warnings.append(f"process {process} left a dump in {'A' if process in a else 'B'} only")
    buffers.sort(key=lambda found: found.step)
    if declared is not None and not any(found.leaf in declared.by_leaf() for found in buffers):
        leaves = ", ".join(buffer.leaf for buffer in declared.buffers)
        raise NotComparableError(f"the dumps hold none of the buffers of the set {declared.title!r}: {leaves}")
    buffers = _with_missing(buffers, declared)
    warnings += [line for label, side in (("A", a), ("B", b)) for line in _remarks(label, side)]
    whole = set(a) == set(b) and all(_ended_well(dump) for dump in (*a.values(), *b.values()))
    return _verdict(buffers, _classified(buffers, declared), warnings, whole)


def _ended_well(dump: DumpReader) -> bool:
    return dump.end is not None and not dump.end.outcome.startswith("error")


def _refuse_strangers(a: Mapping[str, DumpReader], b: Mapping[str, DumpReader], allowed: bool) -> list[str]:
    differences = []
    for process in a:
        if process in b:
            left, right = _identity(a[process].header), _identity(b[process].header)
            differences += [f"{what}: A {left[what]}, B {right[what]}" for what in left if left[what] != right[what]]
    found = list(dict.fromkeys(differences))
    if found and not allowed:
        raise NotComparableError(
            "the dumps are not comparable: " + "; ".join(found) + " (--allow-differences compares them all the same)"
        )
    return [f"the dumps differ in {line}" for line in found]


def _identity(header: Header) -> dict[str, str]:
    """What two comparable dumps agree in. The program counts by its name: the same checkout may lie elsewhere."""
    program = [PurePath(word).name if place == 0 else word for place, word in enumerate(header.command)]
    return {
        "command": " ".join(program),
        "dumped steps": ",".join(map(str, header.steps)),
        "dumped leaves": ",".join(header.leaves) or "all",
        "byte limit": str(header.max_bytes),
    }


def _compare_process(
    process: str, a: DumpReader, b: DumpReader, declared: HypothesisSet | None
) -> Iterator[BufferComparison]:
    """Every leaf that either dump holds: declared buffers first, in their order, then the others as they were met."""
    known = declared.by_leaf() if declared is not None else {}
    sides = _placed(a, _unordered(a, b)), _placed(b, _unordered(a, b))
    ranks = {leaf: place for place, leaf in enumerate(known)}
    for step in sorted({step for step, _ in [*sides[0], *sides[1]]}):
        left, right = ([leaf for at, leaf in side if at == step] for side in sides)
        for leaf in sorted(merged_order(left, right), key=lambda leaf: ranks.get(leaf, len(ranks))):
            buffer = known.get(leaf, BufferDeclaration(leaf, leaf))
            yield _Pairing(process, step, leaf, buffer).compare(a, b, *sides)


def _unordered(a: DumpReader, b: DumpReader) -> frozenset[str]:
    return frozenset(name for side in (a, b) if side.end is not None for name in side.end.unordered)


def _placed(dump: DumpReader, unordered: frozenset[str]) -> Placed:
    """The entries by step and leaf. Occurrences that came from several threads are numbered anew by their bytes: which
    thread came first is no difference between two runs."""
    groups: dict[tuple[int, str], list[Entry]] = {}
    for entry in dump.entries.values():
        if entry.name in unordered:
            groups.setdefault((entry.step, entry.name), []).append(entry)
    numbers: dict[int, int] = {}
    for entries in groups.values():
        entries.sort(key=lambda entry: (entry.dtype, entry.shape, entry.sha256))
        numbers.update({entry.number: index for index, entry in enumerate(entries)})
    return {
        (entry.step, occurrence(entry.name, numbers.get(entry.number, entry.occurrence))): entry
        for entry in dump.entries.values()
    }


@dataclass(frozen=True)
class _Pairing:
    """One leaf at one step of a process, to be sought in both dumps."""

    process: str
    step: int
    leaf: str
    buffer: BufferDeclaration

    def compare(self, a: DumpReader, b: DumpReader, placed_a: Placed, placed_b: Placed) -> BufferComparison:
        left, right = (side.get((self.step, self.leaf)) for side in (placed_a, placed_b))
        if left is None or right is None:
            return self._absent("B" if left else "A", b if left else a)
        for label, entry in (("A", left), ("B", right)):
            if entry.skipped:
                return self._result(BufferStatus.UNKNOWN, left, detail=f"{label} holds no bytes: {entry.skipped}")
        buffers = Buffer(left.dtype, left.shape, a.data(left)), Buffer(right.dtype, right.shape, b.data(right))
        try:
            difference = compare_buffers(*buffers, self.buffer.cancels, self.buffer.sums)
        except NotComparableError as error:
            return self._result(BufferStatus.INCOMPARABLE, left, detail=str(error))
        found = self._result(BufferStatus.DIVERGE if difference else BufferStatus.EQUAL, left)
        return replace(found, difference=difference)

    def _absent(self, label: str, side: DumpReader) -> BufferComparison:
        ended = "" if side.end is not None else f"; the dump of {label} breaks off"
        return self._result(BufferStatus.UNKNOWN, None, detail=f"not in {label}{ended}")

    def _result(self, status: BufferStatus, entry: Entry | None, detail: str = "") -> BufferComparison:
        shape, elements = (entry.shape, entry.elements) if entry is not None else ((), 0)
        return BufferComparison(
            self.step, self.buffer.name, self.leaf, status, self.process, shape, elements, detail=detail
        )


def _with_missing(buffers: Sequence[BufferComparison], declared: HypothesisSet | None) -> list[BufferComparison]:
    """The comparisons with declared buffers that a dumped step lacks on both sides; optional ones may be lacking."""
    if declared is None:
        return list(buffers)
    places = dict.fromkeys((found.step, found.process) for found in buffers)
    known = {(found.step, found.process, found.leaf) for found in buffers}
    lacking = [
        BufferComparison(step, buffer.name, buffer.leaf, BufferStatus.UNKNOWN, process, detail="in neither dump")
        for step, process in places
        for buffer in declared.buffers
        if not buffer.optional and (step, process, buffer.leaf) not in known
    ]
    return sorted([*buffers, *lacking], key=lambda found: (found.step, list(places).index((found.step, found.process))))


def _remarks(label: str, side: Mapping[str, DumpReader]) -> Iterator[str]:
    """What a reader should know of how the dumps of one run were made."""
    for process, dump in side.items():
        where = label if len(side) == 1 else f"{label} ({process})"
        if dump.end is None:
            yield f"the dump of {where} breaks off: its process was killed, or its disk was full"
            continue
        if dump.end.limited:
            yield f"the dump of {where} reached its limit of {dump.header.max_bytes} bytes: {dump.end.limited} left out"
        if dump.end.unseen_steps:
            steps = ", ".join(map(str, dump.end.unseen_steps))
            yield f"steps asked for that {where} never reached, or --every left out: {steps}"
        if dump.end.unseen_leaves:
            yield f"leaves asked for that {where} never met: {', '.join(dump.end.unseen_leaves)}"
        if dump.end.outcome.startswith("error"):
            yield f"the dump of {where} ended early: {dump.end.outcome}"


def _classified(buffers: Sequence[BufferComparison], declared: HypothesisSet | None) -> Classification:
    """The classification over the process that parts first; over the first one where none does."""
    if declared is None or not buffers:
        return NOTHING
    parted = [found for found in buffers if found.status in (BufferStatus.DIVERGE, BufferStatus.INCOMPARABLE)]
    chosen = (parted or buffers)[0].process
    return classify(declared, [found for found in buffers if found.process == chosen])


def _verdict(
    buffers: Sequence[BufferComparison], answer: Classification, warnings: Sequence[str], whole: bool
) -> DumpVerdict:
    diverging = [found for found in buffers if found.status is BufferStatus.DIVERGE]
    unlike = [found for found in buffers if found.status is BufferStatus.INCOMPARABLE]
    unknown = [found for found in buffers if found.status is BufferStatus.UNKNOWN]
    if diverging:
        step = diverging[0].step
        names = ", ".join(found.name for found in diverging if found.step == step)
        outcome, reason = Outcome.DIVERGED, answer.reason or f"the runs first differ at step {step}: {names}"
    elif unlike:
        outcome = Outcome.INCONCLUSIVE
        reason = f"undecided: {unlike[0].name} of step {unlike[0].step} cannot be compared: {unlike[0].detail}"
    elif not buffers:
        outcome, reason = Outcome.INCONCLUSIVE, "undecided: the dumps hold no buffer"
    elif unknown:
        first = unknown[0]
        outcome = Outcome.INCONCLUSIVE
        reason = f"undecided: nothing differs, but {first.name} of step {first.step} was not compared: {first.detail}"
    elif not whole:
        outcome, reason = Outcome.INCONCLUSIVE, "undecided: nothing differs, but a dump is not whole"
    else:
        outcome, reason = Outcome.CLEAN, _all_match(buffers)
    return DumpVerdict(outcome, reason, tuple(buffers), answer.findings, tuple(warnings))


def _all_match(buffers: Sequence[BufferComparison]) -> str:
    count = len({(found.process, found.name) for found in buffers})
    steps = ", ".join(map(str, sorted({found.step for found in buffers})))
    if count == 1:
        return f"the buffer matches across all dumped steps ({steps})."
    number = COUNTS[count] if count < len(COUNTS) else str(count)
    return f"all {number} buffers match across all dumped steps ({steps})."
