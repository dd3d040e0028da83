"""From two traces and their first diverging leaf to one explanation.

`classify` reads top to bottom: `_refusal` (a trace that cannot be trusted), leaves that are no tensor (missing ones,
generators, plain values), then the backward slice (`dataflow.Flow.trace_back`); its earliest end decides, by `RULES`.
Nothing here guesses: what the rules do not cover is `unproven`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from detaudit.core.model import Divergence, DivergenceKind, Explanation, ExplanationKind
from detaudit.explain import wording
from detaudit.explain.align import align
from detaudit.explain.dataflow import End, Flow, Source, unequal
from detaudit.explain.generators import rng_explanation
from detaudit.explain.tracefile import HOST, LeafSeen, Op, Operand, Trace

Rule = Callable[[Flow, End, Divergence], Explanation]


def classify(a: Trace, b: Trace, first: Divergence) -> Explanation:
    """The explanation of `first`, the first divergence of the traced pair itself."""
    refusal = _refusal(a, b)
    if refusal:
        return _unproven(first, refusal)
    flow = Flow(a, b, align(a, b))
    if first.kind is DivergenceKind.MISSING:
        return _parting(flow, first)
    if first.leaf.split(".")[0] == "rng":
        return rng_explanation(flow, first, len(a.ops), len(b.ops), first.leaf.removesuffix(".end"))
    left, right = (find_leaf(trace, first) for trace in (a, b))
    if left is None or right is None:
        return _plain_value(flow, first)
    ends = flow.trace_back(_operand(left), _operand(right), left.before, right.before)
    if not ends:
        return _unproven(first, f"no traced operator leads to {first.leaf}")
    end, crossing = _cross_host(flow, ends[0])
    found = RULES[end.source](flow, end, first)
    return replace(found, evidence=(*found.evidence, *crossing, *_path(flow, end, first)))


def find_leaf(trace: Trace, first: Divergence) -> LeafSeen | None:
    """The record of a leaf of the trail: the n-th of its name in its step; None for one that is no tensor, was folded
    or came from another thread."""
    name, _, number = first.leaf.partition("#")
    if number and not number.isdigit():
        return None
    seen = [leaf for leaf in trace.leaves if leaf.step == first.step and leaf.name == name]
    index = int(number or 0)
    return seen[index] if index < len(seen) else None


def _operand(leaf: LeafSeen) -> Operand:
    return Operand(leaf.storage, leaf.digest, leaf.unwritten)


def _refusal(a: Trace, b: Trace) -> str:
    for label, trace in (("A", a), ("B", b)):
        broken = [note for note in trace.notes if note.startswith("the tracer failed") or "is cut" in note]
        if broken:
            return f"the trace of run {label} cannot be used: {broken[0]}"
        if not trace.ops:
            return f"no operator was seen in the traced steps of run {label}: they ran in another thread or process"
    return ""


def _unproven(first: Divergence, *evidence: str) -> Explanation:
    return Explanation(ExplanationKind.UNPROVEN, first.step, evidence=evidence)


def _plain_value(flow: Flow, first: Divergence) -> Explanation:
    """A leaf that is no tensor (a hyper-parameter, indices): no operator made it. Its first consumer is the first
    operator with equal tensors and another plain argument."""
    if "@" in first.leaf or "#more" in first.leaf:
        return _unproven(first, f"{first.leaf} was recorded in a thread that is not traced")
    said = f"{first.leaf} is a plain value, which no operator produces"
    for op in flow.a.ops:
        other = flow.pair(op.index)[1]
        if op.step >= first.step and other is not None and op.values != other.values:
            same = not any(unequal(x, y) for x, y in zip(op.inputs, other.inputs, strict=False))
            if same:
                evidence = (said, wording.values(op, other))
                return wording.at(op, Explanation(ExplanationKind.OUTSIDE, first.step, evidence=evidence))
    return Explanation(ExplanationKind.OUTSIDE, first.step, evidence=(said, "no traced operator takes it as it is"))


def _cross_host(flow: Flow, end: End) -> tuple[End, tuple[str, ...]]:
    """Follow a value through the host: where an unequal value comes in although an operator handed one out to Python
    before (`.item()`), the inequality began no later than there."""
    if end.source not in (Source.VALUE, Source.UNPRODUCED, Source.HOST):
        return end, ()
    for op in flow.a.ops[: end.index]:
        other = flow.pair(op.index)[1]
        if not op.name.startswith(("aten._local_scalar_dense", HOST)) or other is None:
            continue
        if op.inputs and other.inputs and unequal(op.inputs[0], other.inputs[0]):
            earlier = flow.trace_back(op.inputs[0], other.inputs[0], op.index, other.index)
            if earlier:
                left = f"an unequal value left torch before that, by {wording.short(op.name)} at {wording.place(op)}"
                return earlier[0], (left,)
    return end, ()


def _operator(flow: Flow, end: End, first: Divergence) -> Explanation:
    op, other = _both(flow, end)
    name, count = wording.short(op.name), len(op.inputs)
    evidence = [f"{count} of {count} inputs of {name} are equal in A and B, its output is not"]
    evidence += [line for line in (wording.rerun("A", op), wording.rerun("B", other)) if line]
    differing = sum(found.rerun[0] for found in (op, other) if found.rerun)
    total = sum(found.rerun[1] for found in (op, other) if found.rerun)
    if not differing:
        evidence.append(
            "run again on the same inputs it gave the same output each time, so it is not proven to be at fault"
        )
        return wording.at(op, Explanation(ExplanationKind.UNPROVEN, first.step, evidence=tuple(evidence)))
    rate = f"{differing} of {total} re-executions on the same inputs differ"
    alternative = wording.alternative(op)
    if alternative:
        evidence.append(f"known alternative: {alternative}")
    return wording.at(op, Explanation(ExplanationKind.OPERATOR, first.step, evidence=tuple(evidence), rate=rate))


def _value(flow: Flow, end: End, first: Divergence) -> Explanation:
    op, other = _both(flow, end)
    evidence = ("all tensors that go in are equal", wording.values(op, other), "no operator produced that value")
    return wording.at(op, Explanation(ExplanationKind.OUTSIDE, first.step, evidence=evidence))


def _host(flow: Flow, end: End, first: Divergence) -> Explanation:
    op = flow.a.ops[end.index]
    evidence = f"{wording.short(op.name)} takes over unequal data of the host: it comes from outside torch"
    return wording.at(op, Explanation(ExplanationKind.OUTSIDE, first.step, evidence=(evidence,)))


def _random(flow: Flow, end: End, first: Divergence) -> Explanation:
    op, other = _both(flow, end)
    if op.random == other.random:
        said = f"{wording.short(op.name)} drew other numbers from a generator in an equal state"
        return wording.at(op, _unproven(first, said))
    return rng_explanation(flow, first, op.index, other.index, op.random.partition(":")[0], op)


def _unproduced(flow: Flow, end: End, first: Divergence) -> Explanation:
    reader = _reader(flow, end, first)
    if reader is None:
        said = f"the tensor of {first.leaf} was written by no traced operator, and none of the traced steps reads it"
        return Explanation(ExplanationKind.OUTSIDE, first.step, evidence=(said,))
    name = wording.short(reader.name)
    evidence = [f"an unequal input of {name} was written by no traced operator: it comes from outside torch"]
    if name == "lift_fresh":
        evidence.append("lift_fresh is how torch takes over what torch.tensor or torch.from_numpy made of host data")
    evidence += _order(flow, reader)
    return wording.at(reader, Explanation(ExplanationKind.OUTSIDE, first.step, evidence=tuple(evidence)))


def _reader(flow: Flow, end: End, first: Divergence) -> Op | None:
    """The operator that read the unequal tensor; where the leaf itself is it, the first to read its storage."""
    if end.index < len(flow.a.ops):
        return flow.a.ops[end.index]
    leaf = find_leaf(flow.a, first)
    return next(flow.readers(leaf.storage), None) if leaf is not None else None


def _order(flow: Flow, reader: Op) -> list[str]:
    other = flow.pair(reader.index)[1]
    if other is None or len(reader.inputs) < 2:
        return []
    mine, theirs = ([operand.digest for operand in op.inputs] for op in (reader, other))
    if mine != theirs and Counter(mine) == Counter(theirs):
        return [f"the same {len(mine)} tensors in another order"]
    return []


def _unwritten(flow: Flow, end: End, first: Divergence) -> Explanation:
    reader = flow.a.ops[end.index] if end.index < len(flow.a.ops) else None
    leaf = find_leaf(flow.a, first)
    storage = reader.inputs[end.position].storage if reader is not None else leaf.storage if leaf is not None else -1
    maker = next((flow.a.ops[index] for index in flow.writers(storage) if flow.a.ops[index].allocates), None)
    who = f"{wording.short(reader.name)} at {wording.place(reader)}" if reader is not None else f"the leaf {first.leaf}"
    evidence = [f"{who} reads memory that was allocated and never written"]
    if maker is not None:
        evidence.append(f"allocated by {wording.short(maker.name)} at {wording.place(maker)}")
    found = Explanation(ExplanationKind.MEMORY, first.step, evidence=tuple(evidence))
    chosen = maker or reader
    return wording.at(chosen, found) if chosen is not None else found


def _old(flow: Flow, end: End, first: Divergence) -> Explanation:
    said = f"an unequal tensor is older than the traced steps, which begin at step {flow.a.window[0]}, and is no leaf"
    op = flow.a.ops[end.index] if end.index < len(flow.a.ops) else None
    found = _unproven(first, said)
    return wording.at(op, found) if op is not None else found


def _producer(flow: Flow, end: End, first: Divergence) -> Explanation:
    if end.index >= len(flow.a.ops):
        return _parting(flow, first)
    op = flow.a.ops[end.index]
    evidence = [f"an unequal input of {wording.short(op.name)} was produced by another operator in B than in A"]
    evidence += _order(flow, op)
    return wording.at(op, Explanation(ExplanationKind.CONTROL_FLOW, first.step, evidence=tuple(evidence)))


def _parting(flow: Flow, first: Divergence, end: End | None = None) -> Explanation:
    """The operator sequences differ: the first operator that only one run executed."""
    parting = flow.alignment.parting
    if parting is None:
        return _unproven(first, "both runs executed the same operators")
    left = next((op for op in flow.a.ops[parting[0] :] if flow.alignment.partner[op.index] is None), None)
    right = next((op for op in flow.b.ops[parting[1] :] if flow.alignment.partner_b[op.index] is None), None)
    evidence = []
    for label, op in (("A", left), ("B", right)):
        if op is not None:
            inside = f" in module {op.module}" if op.module else ""
            evidence.append(f"only run {label} executed {wording.short(op.name)}{inside} at {wording.place(op)}")
    chosen = min((op for op in (left, right) if op is not None), key=lambda op: op.index, default=None)
    found = Explanation(ExplanationKind.CONTROL_FLOW, first.step, evidence=tuple(evidence))
    return wording.at(chosen, found) if chosen is not None else found


def _unpaired(flow: Flow, end: End, first: Divergence) -> Explanation:
    return _parting(flow, first)


def _both(flow: Flow, end: End) -> tuple[Op, Op]:
    op, other = flow.pair(end.index)
    assert other is not None
    return op, other


def _path(flow: Flow, end: End, first: Divergence) -> tuple[str, ...]:
    names = [wording.short(flow.a.ops[index].name) for index in end.path]
    if not names:
        return ()
    shown = names if len(names) <= wording.MAX_PATH else [*names[:3], "...", *names[-2:]]
    return (f"its output reaches {first.leaf} through {' -> '.join(shown)}",)


RULES: dict[Source, Rule] = {
    Source.OPERATOR: _operator,
    Source.VALUE: _value,
    Source.HOST: _host,
    Source.RANDOM: _random,
    Source.UNPRODUCED: _unproduced,
    Source.UNWRITTEN: _unwritten,
    Source.OLD: _old,
    Source.PRODUCER: _producer,
    Source.UNPAIRED: _unpaired,
}
