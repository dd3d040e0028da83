"""Holds compared buffers against a hypothesis set: what do the dumps support, what do they rule out, what stays open?

`classify` reads top to bottom: the first step at which a buffer differs, the buffers that are first in it, a finding a
hypothesis, and the answer in words.

The dumps support a hypothesis only if every feeder of its buffer was dumped and is equal. A feeder that was not dumped
leaves it open, and the answer `unproven`; a first buffer that no hypothesis speaks of is the answer `none`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from detaudit.core.buffers import BufferComparison, BufferStatus, HypothesisFinding, Support
from detaudit.explain.hypotheses import Hypothesis, HypothesisSet


@dataclass(frozen=True)
class Classification:
    """`answer` is the id of the supported hypothesis (several joined by a plus), `none`, `unproven`, or empty when
    nothing differs; `reason` says it in words."""

    answer: str
    reason: str
    findings: tuple[HypothesisFinding, ...]


class _Evidence:
    """What the dumps of one process know of the buffers of a set."""

    def __init__(self, declared: HypothesisSet, buffers: Sequence[BufferComparison]) -> None:
        self.buffers = {buffer.name: buffer for buffer in declared.buffers}
        self._found = {(found.step, found.name): found for found in buffers}
        self._seen = {found.name for found in buffers if found.status is not BufferStatus.UNKNOWN}

    def at(self, step: int, name: str) -> BufferComparison | None:
        return self._found.get((step, name))

    def status(self, step: int, name: str) -> BufferStatus:
        found = self.at(step, name)
        return BufferStatus.UNKNOWN if found is None else found.status

    def differs(self, step: int, name: str) -> bool:
        return self.status(step, name) in (BufferStatus.DIVERGE, BufferStatus.INCOMPARABLE)

    def feeders(self, step: int, name: str) -> Iterator[tuple[int, str]]:
        """What feeds a buffer at a step, as (step, buffer); an optional buffer that no dump holds is looked through."""
        buffer = self.buffers[name]
        inside = [(step, feeder) for feeder in buffer.fed_by]
        for place in inside + [(step - 1, feeder) for feeder in buffer.fed_by_previous]:
            if self.buffers[place[1]].optional and place[1] not in self._seen:
                yield from self.feeders(*place) if place[0] >= 0 else iter([place])
            else:
                yield place


def classify(declared: HypothesisSet, buffers: Sequence[BufferComparison]) -> Classification:
    """What the comparisons of one process say of the hypotheses of a set."""
    evidence = _Evidence(declared, buffers)
    names = [buffer.name for buffer in declared.buffers]
    steps = sorted({found.step for found in buffers})
    step = next((step for step in steps if any(evidence.differs(step, name) for name in names)), None)
    if step is None:
        return Classification(
            "", "", tuple(_unneeded(evidence, hypothesis, steps) for hypothesis in declared.hypotheses)
        )
    first = [
        name
        for name in names
        if evidence.differs(step, name) and not any(evidence.differs(*place) for place in evidence.feeders(step, name))
    ]
    findings = tuple(_finding(evidence, hypothesis, step, first) for hypothesis in declared.hypotheses)
    return _answer(declared, evidence, step, first, findings)


def _unneeded(evidence: _Evidence, hypothesis: Hypothesis, steps: Sequence[int]) -> HypothesisFinding:
    unknown = [step for step in steps if evidence.status(step, hypothesis.buffer) is not BufferStatus.EQUAL]
    if unknown or not steps:
        reason = f"{hypothesis.buffer} was not dumped at every step"
        return HypothesisFinding(hypothesis.id, hypothesis.title, Support.OPEN, reason)
    reason = f"{hypothesis.buffer} is equal at every dumped step"
    return HypothesisFinding(hypothesis.id, hypothesis.title, Support.RULED_OUT, reason)


def _finding(evidence: _Evidence, hypothesis: Hypothesis, step: int, first: Sequence[str]) -> HypothesisFinding:
    name = hypothesis.buffer
    status = evidence.status(step, name)
    if name in first:
        unknown = _unknown(evidence, step, name)
        fed = ", ".join(_places(step, evidence.feeders(step, name)))
        if unknown:
            support, reason = Support.OPEN, f"{name} differs at step {step}, but {_were_not_dumped(unknown)}"
        elif fed:
            support, reason = Support.SUPPORTED, f"{name} differs at step {step} while what feeds it is equal: {fed}"
        else:
            support, reason = Support.SUPPORTED, f"{name} differs at step {step}, and no other buffer feeds it"
    elif status is BufferStatus.EQUAL:
        support, reason = (
            Support.RULED_OUT,
            f"{name}: equal at step {step}, where {' and '.join(first)} differs first",
        )
    elif status is BufferStatus.UNKNOWN:
        support, reason = Support.OPEN, f"{name} was not dumped at step {step}"
    else:
        feeders = [place for place in evidence.feeders(step, name) if evidence.differs(*place)]
        support = Support.OPEN
        reason = f"{name} differs at step {step}, but so does what feeds it: {', '.join(_places(step, feeders))}"
    return HypothesisFinding(hypothesis.id, hypothesis.title, support, reason)


def _unknown(evidence: _Evidence, step: int, name: str) -> list[str]:
    places = evidence.feeders(step, name)
    return _places(step, (place for place in places if evidence.status(*place) is BufferStatus.UNKNOWN))


def _places(step: int, places: Iterable[tuple[int, str]]) -> list[str]:
    """Feeders in words; those of another step with it."""
    return [
        name if at == step else f"{name} of step {at}" if at >= 0 else f"{name} before step 0" for at, name in places
    ]


def _were_not_dumped(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} not dumped"


def _answer(
    declared: HypothesisSet,
    evidence: _Evidence,
    step: int,
    first: Sequence[str],
    findings: tuple[HypothesisFinding, ...],
) -> Classification:
    supported = [finding.id for finding in findings if finding.support is Support.SUPPORTED]
    if supported:
        chosen = [hypothesis for hypothesis in declared.hypotheses if hypothesis.id in supported]
        parts = [_supported(evidence, hypothesis, step) for hypothesis in chosen]
        return Classification("+".join(supported), "; ".join(parts), findings)
    unproven = [f"{name}: {_were_not_dumped(found)}" for name in first if (found := _unknown(evidence, step, name))]
    what = f"{' and '.join(first)} {'is' if len(first) == 1 else 'are'} the first to differ, at step {step}"
    if unproven:
        return Classification(
            "unproven", f"unproven: {what}, but what feeds it is not known ({'; '.join(unproven)})", findings
        )
    ids = ", ".join(hypothesis.id for hypothesis in declared.hypotheses) or "no hypothesis"
    reason = f"none of {ids}: {what}, and no hypothesis speaks of that; its cause lies outside the declared buffers"
    return Classification("none", reason, findings)


def _supported(evidence: _Evidence, hypothesis: Hypothesis, step: int) -> str:
    found = evidence.at(step, hypothesis.buffer)
    difference = found.difference if found is not None else None
    head = (
        f"HYPOTHESIS {hypothesis.id} ({hypothesis.title}): {hypothesis.buffer} is the first to differ, at step {step}"
    )
    return f"{head}. {hypothesis.words(difference)}"
