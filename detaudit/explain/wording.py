"""How operators and places read in an explanation."""

from __future__ import annotations

import linecache
from dataclasses import replace

from detaudit.core.model import Explanation
from detaudit.explain.tracefile import Op, Site

MAX_PATH = 6
MAX_VALUES = 60

UNIQUE = "unique indices; or torch.use_deterministic_algorithms(True)"

ALTERNATIVES = {
    "index_put": "torch.index_select or nn.functional.embedding, whose backward is deterministic on CPU; "
    "or torch.use_deterministic_algorithms(True)",
    "index_put_": "index_add_ or scatter_add_, which are deterministic on CPU; "
    "or torch.use_deterministic_algorithms(True)",
    "put_": "index_put_ under torch.use_deterministic_algorithms(True)",
    "index_copy_": UNIQUE,
    "scatter_add_": "torch.use_deterministic_algorithms(True)",
    "index_add_": "torch.use_deterministic_algorithms(True)",
}
"""Source: the census and the list of torch.use_deterministic_algorithms in its documentation."""


def short(name: str) -> str:
    """`aten.index_put.default` -> `index_put`; an overload other than the default stays."""
    parts = name.split(".")
    if parts[0] in ("aten", "prims", "host"):
        parts = parts[1:]
    return ".".join(part for part in parts if part != "default")


def code(site: Site) -> str:
    """The text of the line, empty where the file cannot be read."""
    return linecache.getline(site.file, site.line).strip() if site.file and site.line else ""


def place(op: Op) -> str:
    return f"{op.site.file}:{op.site.line}" if op.site.file else "no line of the user's"


def at(op: Op, found: Explanation) -> Explanation:
    """The explanation at the place of an operator; for one of the backward that is the line of its forward."""
    evidence = found.evidence
    if op.node:
        line = "; the line given is that of its forward" if op.site.file else ""
        evidence = (*evidence, f"{short(op.name)} ran in the backward, in {op.node.split('::')[-1]}{line}")
    return replace(
        found,
        operator=short(op.name),
        module=op.module,
        file=op.site.file,
        line=op.site.line,
        code=code(op.site),
        evidence=evidence,
    )


def rerun(label: str, op: Op) -> str:
    if op.rerun is None:
        return f"it was not run again in run {label}"
    differing, total, distinct = op.rerun
    return f"run again on the same inputs in run {label}: {differing} of {total} differ, {distinct} different results"


def values(left: Op, right: Op) -> str:
    pairs = [(x, y) for x, y in zip(left.values, right.values, strict=False) if x != y]
    if not pairs:
        return f"{short(left.name)} takes {len(left.values)} plain values in A and {len(right.values)} in B"
    x, y = (text[:MAX_VALUES] for text in pairs[0])
    return f"{short(left.name)} takes the plain value {x} in A and {y} in B"


def alternative(op: Op) -> str:
    name = short(op.name).split(".")[0]
    if name in ("index_put", "index_put_") and "True" not in op.values:
        return UNIQUE  # it does not accumulate: which of several values for one place wins is open
    return ALTERNATIVES.get(name, "")
