"""Where a random generator went apart: a seed that differs, a draw that only one run made, or neither in sight."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from detaudit.core.model import Divergence, Explanation, ExplanationKind
from detaudit.explain import wording
from detaudit.explain.dataflow import Flow
from detaudit.explain.tracefile import Op, Reseed, Site

OWN = "torch.Generator."
FUNCTIONS = {"python": "random.", "numpy": "numpy.random."}


def rng_explanation(
    flow: Flow, first: Divergence, before_a: int, before_b: int, generator: str, user: Op | None = None
) -> Explanation:
    """Why `generator` (a leaf `rng.NAME`, or `torch` / `own DEVICE` of a random operator) differs. Only what happened
    before operator `before_a` of A and `before_b` of B counts; `user` is the operator that drew from it."""
    kind = generator.removeprefix("rng.").split(".")[0]
    evidence = []
    if user is not None:
        evidence.append(
            f"{wording.short(user.name)} drew from a generator ({generator}) whose state was unequal before it"
        )
    earlier = _first_unequal_draw(flow, before_a, kind, user.own if user else 0)
    if earlier is not None:
        evidence.append(
            f"first unequal state at step {earlier.step}, "
            f"before {wording.short(earlier.name)} at {wording.place(earlier)}"
        )
    site: Site | None = None
    reseeds, chosen = _reseeds(flow, first, before_a, before_b, _family(flow, kind, user))
    evidence += reseeds
    if chosen is not None:
        site = chosen.site
        operator = chosen.function
    else:
        draw, said = _extra_draw(flow, before_a, before_b, first.step)
        evidence.append(said)
        operator = wording.short(draw.name) if draw else wording.short(user.name) if user else ""
        found = draw or earlier or user
        site = found.site if found else Site()
    return Explanation(
        kind=ExplanationKind.RNG,
        step=first.step,
        operator=operator,
        module=user.module if user is not None and chosen is None else "",
        file=site.file,
        line=site.line,
        code=wording.code(site),
        evidence=tuple(evidence),
    )


def _first_unequal_draw(flow: Flow, before: int, kind: str, own: int) -> Op | None:
    for op in flow.a.ops[:before]:
        other = flow.pair(op.index)[1]
        if op.random.startswith(kind) and op.own == own and other is not None and op.random != other.random:
            return op
    return None


@dataclass(frozen=True)
class _Family:
    """The seedings that count: those of functions that begin so, and of which of the program's own generators (in A,
    in B); 0 is that of the global ones."""

    prefix: str
    own: tuple[int, int] = (0, 0)


def _family(flow: Flow, kind: str, user: Op | None) -> _Family:
    if kind.split()[0] != "own":
        return _Family(FUNCTIONS.get(kind, "torch."))
    other = flow.pair(user.index)[1] if user is not None else None
    return _Family(OWN, (user.own if user else 0, other.own if other else 0))


def _reseeds(
    flow: Flow, first: Divergence, before_a: int, before_b: int, family: _Family
) -> tuple[list[str], Reseed | None]:
    """A sentence for every seeding of that generator in the traced steps, and the first that differs."""
    left, right = (
        [
            seed
            for seed in trace.reseeds
            if seed.function.startswith(family.prefix)
            and seed.own == own
            and seed.before <= before
            and seed.step <= first.step
        ]
        for trace, before, own in zip((flow.a, flow.b), (before_a, before_b), family.own, strict=True)
    )
    lines: list[str] = []
    chosen = None
    for mine, theirs in zip_longest(left, right):
        seed = mine or theirs
        where = f"{seed.function} at {seed.site.file}:{seed.site.line}, step {seed.step}"
        if mine is None or theirs is None:
            lines.append(f"{where}: called in run {'B' if mine is None else 'A'} only")
        elif mine.value != theirs.value:
            lines.append(f"{where}: {mine.value or 'no argument'} in A, {theirs.value or 'no argument'} in B")
        elif not mine.value:
            lines.append(f"{where}: without an argument, so from the operating system")
        else:
            lines.append(f"{where}: {mine.value} in both")
            continue
        chosen = chosen or seed
    return lines, chosen


def _extra_draw(flow: Flow, before_a: int, before_b: int, step: int) -> tuple[Op | None, str]:
    """The first random operator that only one run executed."""
    sides = (
        ("A", flow.a.ops[:before_a], flow.alignment.partner),
        ("B", flow.b.ops[:before_b], flow.alignment.partner_b),
    )
    extra = [
        (op, label) for label, ops, partner in sides for op in ops
        if op.random and op.step <= step and partner[op.index] is None
    ]  # fmt: skip
    if not extra:
        return (
            None,
            "no seed and no draw differs in what was traced: another thread or untraced code used the generator",
        )
    op, label = min(extra, key=lambda found: found[0].index)
    return op, f"only run {label} drew from a generator with {wording.short(op.name)} at {wording.place(op)}"
