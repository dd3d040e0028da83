"""The bytes of a leaf that the traced pair kept by itself: what is asked of it, and what they say.

A trace knows digests, which tell that a leaf differs and not how. So a traced pair dumps the leaf in question over its
window, under the byte limit of every dump, and `told` compares the two: sentences for the evidence. What was not kept
is said, with the cure where there is one.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from detaudit.core.buffers import BufferComparison
from detaudit.core.env import DUMP_NAME, Settings
from detaudit.core.errors import DetauditError
from detaudit.core.model import Divergence
from detaudit.dump.manifest import LIMIT
from detaudit.dump.reader import open_dump
from detaudit.report.dump import difference_texts

CURE = "DETAUDIT_DUMP_MAX_BYTES raises the limit"


def keeping(settings: Settings, leaf: str) -> Settings:
    """The settings of a traced run that also dumps `leaf`, beside its trails, at each step of its window."""
    assert settings.trace is not None
    first, last = settings.trace
    steps = tuple(range(first, last + 1))
    return replace(settings, dump=True, dump_steps=steps, dump_leaves=(_glob(leaf),), dump_directory="")


def _glob(leaf: str) -> str:
    """A glob for a name, which a list parted by commas can hold."""
    return glob.escape(leaf).replace(",", "?") if "," in leaf else leaf


def told(directories: Sequence[Path], first: Divergence, process: str) -> tuple[str, ...]:
    """How the leaf `first` differs between the dumps of two traced runs, else why that is not known."""
    from detaudit.explain.buffers import compare_dumps  # loads numpy, which offline verbs do without

    try:
        a, b = (open_dump(directory / DUMP_NAME) for directory in directories)
        left, right = ({process: dump[process]} if process in dump else {} for dump in (a, b))
        verdict = compare_dumps(left, right, allow_differences=True)
    except DetauditError as error:
        return (_unknown(first, str(error)),)
    found = [buffer for buffer in verdict.buffers if (buffer.step, buffer.leaf) == (first.step, first.leaf)]
    if not found:
        kept = ", ".join(dict.fromkeys(buffer.leaf for buffer in verdict.buffers)) or "nothing"
        return (_unknown(first, f"the traced pair kept {kept}"),)
    return _sentences(found[0], first)


def _sentences(found: BufferComparison, first: Divergence) -> tuple[str, ...]:
    if found.difference is not None:
        where, *others = difference_texts(found.difference)
        index = f"idx {found.difference.first}"
        values = f"{found.difference.value_a} in A, {found.difference.value_b} in B"
        return (f"{first.leaf}: {where}; at {index} {values}", "; ".join(filter(None, others)))
    cure = f"; {CURE}" if LIMIT in found.detail else ""
    # Equal bytes under unequal digests would be a defect of the recorder; it must not be passed over.
    return (_unknown(first, (found.detail or "the two dumps hold equal bytes") + cure),)


def _unknown(first: Divergence, why: str) -> str:
    return f"how the values of {first.leaf} differ is not known: {why}"
