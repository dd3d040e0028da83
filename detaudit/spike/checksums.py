"""First divergence of two dumps that carry checksums (md5 mode: CRC-32; xor mode: XOR of words).

Walks A in execution order and asks of every operator whether its inputs are equal and its outputs are not. A backward
operator also consumes what its forward saved: if the forward's inputs or outputs differ, the backward only inherits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detaudit.spike.dump_keys import API, BACKWARD, GRADIENT, MODULE
from detaudit.spike.read_dump import Dump, Entry, TensorStats

MAX_LISTED = 20
PLACEHOLDERS = ("empty", "empty_like", "recv", "irecv", "all_gather", "all_gather_into_tensor", "reduce_scatter")
"""Operators whose output buffers hold whatever was in memory before: their inputs decide nothing."""


@dataclass(frozen=True)
class Step:
    """One compared entry: whether inputs and outputs are equal (None: no checksum to tell)."""

    entry: Entry
    inputs_equal: bool | None
    outputs_equal: bool | None
    inherits: str


def first_divergence(a: Dump, b: Dump) -> dict[str, Any]:
    """The first operator with equal inputs and unequal outputs, or the gap in which a value changed unseen.

    `verdict` is one of: equal, operator, gap (a tensor changed between operators that were recorded), inputs (the first
    compared operator already differs in its inputs), not comparable.
    """
    result: dict[str, Any] = {
        "verdict": "not comparable",
        "operator": None,
        "reason": "",
        "last_good": None,
        "unmatched": [],
        "compared": 0,
        "inherited": [],
        "weak": "",
    }
    if not (a.has_checksums and b.has_checksums):
        result["reason"] = "one side carries no checksums"
        return result
    kinds = {_kind(dump) for dump in (a, b)}
    if len(kinds) > 1:
        result["reason"] = f"checksums of two kinds: {' and '.join(sorted(kinds))}"
        return result
    if kinds == {"xor"}:
        result["weak"] = "XOR checksums are blind to word order and to paired flips: equal does not mean equal bits"
    result["unmatched"] = unmatched(a, b)[:MAX_LISTED]
    steps = [_step(entry, b, a) for entry in a.entries.values() if entry.key.text in b.entries]
    result["compared"] = len(steps)
    last_good: Step | None = None
    known_equal = _checksums_of_equal_outputs(a, b)
    for step in steps:
        if step.outputs_equal is not False and step.inputs_equal is not False:
            last_good = step if step.outputs_equal else last_good
            continue
        if step.inherits:
            result["inherited"] = [*result["inherited"], step.entry.key.text][:MAX_LISTED]
            continue
        result["operator"] = step.entry.key.text
        result["last_good"] = last_good.entry.key.text if last_good else None
        if step.inputs_equal is not False:
            result["verdict"] = "operator"
            result["reason"] = (
                "inputs equal, outputs unequal" if step.inputs_equal else "outputs unequal, no input to compare"
            )
        elif last_good is None:
            result["verdict"], result["reason"] = "inputs", "the first compared operator gets unequal inputs"
        else:
            result["verdict"] = "gap"
            result["reason"] = _gap(step, b, known_equal)
        return result
    if not steps:
        result["reason"] = "no entry of A has a counterpart in B"
    elif all(step.outputs_equal is None and step.inputs_equal is None for step in steps):
        result["reason"] = "no compared entry carries a checksum"
    elif result["inherited"] or result["unmatched"]:
        result["verdict"], result["reason"] = (
            "gap",
            "no operator of its own differs, but entries are unmatched or inherit",
        )
    else:
        result["verdict"], result["reason"] = "equal", f"{len(steps)} entries equal"
    return result


def _kind(dump: Dump) -> str:
    texts = [t.checksum for e in dump.entries.values() for t in (*e.inputs, *e.outputs) if t and t.checksum]
    return "xor" if texts and texts[0].startswith("0x") else "crc32"


def _step(entry: Entry, b: Dump, a: Dump) -> Step:
    other = b.entries[entry.key.text]
    if entry.key.kind == GRADIENT:
        pairs = [(t, other.gradients.get(name)) for name, t in entry.gradients.items()]
        equal = _all_equal([left for left, _ in pairs], [right for _, right in pairs])
        # A parameter's gradient is computed by the operators around it; it never diverges on its own.
        return Step(entry, None, equal, "" if equal is not False else "parameter gradient")
    inputs = None if any(word in entry.key.path for word in PLACEHOLDERS) else _all_equal(entry.inputs, other.inputs)
    inherits = ""
    if entry.key.direction == BACKWARD:
        forward = _forward_of(entry)
        if forward in a.entries and forward in b.entries:
            saved = (a.entries[forward], b.entries[forward])
            same = [_all_equal(saved[0].inputs, saved[1].inputs), _all_equal(saved[0].outputs, saved[1].outputs)]
            inherits = forward if False in same else ""
    return Step(entry, inputs, _all_equal(entry.outputs, other.outputs), inherits)


def _forward_of(entry: Entry) -> str:
    text = entry.key.text
    if entry.key.kind == API:
        return text.removesuffix("backward") + "forward"
    return f"{text.rsplit('.', 2)[0]}.forward.{entry.key.call}" if entry.key.kind == MODULE else ""


def _all_equal(left: list[TensorStats | None], right: list[TensorStats | None]) -> bool | None:
    """True or False over tensors with checksums; False for a tensor that one side lacks; None with nothing to
    compare."""
    verdict: bool | None = None
    for i in range(max(len(left), len(right))):
        one = left[i] if i < len(left) else None
        other = right[i] if i < len(right) else None
        if one is None and other is None:
            continue
        if one is None or other is None:
            return False
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        if one.checksum and other.checksum:
            if one.checksum != other.checksum:
                return False
            verdict = True
    return verdict


def _checksums_of_equal_outputs(a: Dump, b: Dump) -> Mapping[str, str]:
    """Checksum -> the entry of A that produced it, where B's counterpart produced the same."""
    known: dict[str, str] = {}
    for entry in a.entries.values():
        other = b.entries.get(entry.key.text)
        if other is not None and _all_equal(entry.outputs, other.outputs):
            for tensor in entry.outputs:
                if tensor is not None and tensor.checksum:
                    known.setdefault(tensor.checksum, entry.key.text)
    return known


def _gap(step: Step, b: Dump, known: Mapping[str, str]) -> str:
    other = b.entries[step.entry.key.text]
    for i, tensor in enumerate(step.entry.inputs):
        theirs = other.inputs[i] if i < len(other.inputs) else None
        if tensor is not None and theirs is not None and tensor.checksum != theirs.checksum:
            source = known.get(tensor.checksum) or known.get(theirs.checksum)
            made = f"; one side still holds the output of {source}" if source else ""
            return f"input {i} differs although nothing recorded before it does: changed by what was not recorded{made}"
    return "an input differs although nothing recorded before it does: changed by what was not recorded"


def unmatched(a: Dump, b: Dump) -> list[str]:
    """Entries that only one side holds, in execution order."""
    only_a = [(entry.order, f"{key}: only in A") for key, entry in a.entries.items() if key not in b.entries]
    only_b = [(entry.order, f"{key}: only in B") for key, entry in b.entries.items() if key not in a.entries]
    return [text for _, text in sorted([*only_a, *only_b])]
