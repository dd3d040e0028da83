"""Named explanations over declared buffers, as data: a TOML file that a workload ships or a user writes.

    title = "my agent"                       # optional; the file's name otherwise
    [buffers.tree]
    leaf = "checksums.priority_tree"         # the leaf that holds it
    fed_by = ["priorities"]                  # what it is computed from within a step
    fed_by_previous = ["tree"]               # and from the step before
    optional = true                          # passed over where no dump holds it (false)
    cancels = false                          # its values are sums of numbers of one sign: no cancellation (true)
    sums = "heap"                            # and a binary tree in heap order, each node the sum of its children
    [hypotheses.C]
    title = "tree-rebuild nondeterminism"
    buffer = "tree"                          # explains this one being the first to differ, all that feeds it equal
    explanation = "The rebuild differs over equal leaves."
    if_rounding = "..."                      # added where the values say so; also if_far, if_permutation

`explain/weigh.py` holds dumps against such a set.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from detaudit.compare.sums import LAYOUTS
from detaudit.core.buffers import Difference, Nearness
from detaudit.core.errors import UnreadableError, UsageError

VALUES: dict[str, Callable[[Difference], bool]] = {
    "if_permutation": lambda difference: difference.permutation,
    "if_rounding": lambda difference: difference.nearness is Nearness.ROUNDING,
    "if_far": lambda difference: difference.nearness in (Nearness.FAR, Nearness.BEYOND),
}
"""Keys of a hypothesis that refine its explanation by the values found, in the order they are tried."""

KEYS = {
    "": {"title", "buffers", "hypotheses"},
    "buffers": {"leaf", "optional", "cancels", "sums", "fed_by", "fed_by_previous"},
    "hypotheses": {"title", "buffer", "explanation", *VALUES},
}


@dataclass(frozen=True)
class BufferDeclaration:
    """A buffer of a set: the leaf that holds it, and what feeds it within the step and from the step before.

    An `optional` buffer that was not dumped is passed over: what feeds it counts as feeding what it feeds. `cancels`
    and `sums` go to `compare_buffers`.
    """

    name: str
    leaf: str
    fed_by: tuple[str, ...] = ()
    fed_by_previous: tuple[str, ...] = ()
    optional: bool = False
    cancels: bool = True
    sums: str = ""


@dataclass(frozen=True)
class Hypothesis:
    """An explanation for one buffer being the first to differ. `by_value` holds refinements by key of VALUES."""

    id: str
    title: str
    buffer: str
    explanation: str
    by_value: Mapping[str, str]

    def words(self, difference: Difference | None) -> str:
        """The explanation, with what the values found add to it."""
        if difference is not None:
            for key, holds in VALUES.items():
                if key in self.by_value and holds(difference):
                    return f"{self.explanation} {self.by_value[key]}"
        return self.explanation


@dataclass(frozen=True)
class HypothesisSet:
    """The buffers in an order in which feeders come first, and the hypotheses in the order of the file."""

    title: str
    buffers: tuple[BufferDeclaration, ...]
    hypotheses: tuple[Hypothesis, ...]

    def by_leaf(self) -> dict[str, BufferDeclaration]:
        return {buffer.leaf: buffer for buffer in self.buffers}


def read_set(path: Path) -> HypothesisSet:
    """A hypothesis set from a TOML file.

    Raises UnreadableError for a file that cannot be read or is no TOML, UsageError for one whose content is wrong: no
    buffer, an unknown buffer or key, a missing key, a leaf that two buffers claim, a cycle.
    """
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{path} is not TOML: {error}") from error
    try:
        return _parsed(value, path.stem)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _parsed(value: Mapping[str, Any], stem: str) -> HypothesisSet:
    _check_keys("the file", value, "")
    tables = {key: _tables(value, key) for key in ("buffers", "hypotheses")}
    if not tables["buffers"]:
        raise UsageError("no buffer is declared; write one as [buffers.NAME] with leaf = '...'")
    buffers = {name: _buffer(name, table) for name, table in tables["buffers"].items()}
    for buffer in buffers.values():
        for feeder in (*buffer.fed_by, *buffer.fed_by_previous):
            _check_known(f"buffers.{buffer.name}", feeder, buffers)
    leaves: dict[str, str] = {}
    for buffer in buffers.values():
        other = leaves.setdefault(buffer.leaf, buffer.name)
        if other != buffer.name:
            raise UsageError(f"buffers.{other} and buffers.{buffer.name} both are leaf {buffer.leaf!r}")
    try:
        order = list(TopologicalSorter({name: buffer.fed_by for name, buffer in buffers.items()}).static_order())
    except CycleError as error:
        path = " -> ".join(error.args[1])
        raise UsageError(
            f"buffers feed each other in a cycle within one step: {path}; "
            "what comes from the step before belongs into fed_by_previous"
        ) from None
    hypotheses = [_hypothesis(name, table) for name, table in tables["hypotheses"].items()]
    for hypothesis in hypotheses:
        _check_known(f"hypotheses.{hypothesis.id}", hypothesis.buffer, buffers)
    title = _text("the file", value, "title") if "title" in value else stem
    return HypothesisSet(title, tuple(buffers[name] for name in order), tuple(hypotheses))


def _tables(value: Mapping[str, Any], key: str) -> Mapping[str, Mapping[str, Any]]:
    tables = value.get(key, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UsageError(f"{key} holds something that is no table; write [{key}.NAME]")
    for name, table in tables.items():
        _check_keys(f"{key}.{name}", table, key)
    return tables


def _check_keys(where: str, table: Mapping[str, Any], kind: str) -> None:
    unknown = sorted(set(table) - KEYS[kind])
    if unknown:
        raise UsageError(
            f"{where} has the unknown key {unknown[0]!r}; the legal ones are {', '.join(sorted(KEYS[kind]))}"
        )


def _check_known(where: str, name: str, buffers: Mapping[str, BufferDeclaration]) -> None:
    if name not in buffers:
        raise UsageError(f"{where} names the unknown buffer {name!r}; the declared ones are {', '.join(buffers)}")


def _buffer(name: str, table: Mapping[str, Any]) -> BufferDeclaration:
    where = f"buffers.{name}"
    switches = {"optional": False, "cancels": True, **{k: table[k] for k in ("optional", "cancels") if k in table}}
    for key, value in switches.items():
        if not isinstance(value, bool):
            raise UsageError(f"{where}: {key} is {value!r}; it takes true or false")
    fed_by, fed_by_previous = (_names(where, table, key) for key in ("fed_by", "fed_by_previous"))
    sums = table.get("sums", "")
    if "sums" in table and (sums not in LAYOUTS or switches["cancels"]):
        raise UsageError(f"{where}: sums is {sums!r}; it takes {', '.join(LAYOUTS)}, and with cancels = false only")
    return BufferDeclaration(name, _text(where, table, "leaf"), fed_by, fed_by_previous, **switches, sums=sums)


def _hypothesis(name: str, table: Mapping[str, Any]) -> Hypothesis:
    where = f"hypotheses.{name}"
    title, buffer, explanation = (_text(where, table, key) for key in ("title", "buffer", "explanation"))
    return Hypothesis(name, title, buffer, explanation, {k: _text(where, table, k) for k in VALUES if k in table})


def _text(where: str, table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {key} is {value!r}; it takes a text" if key in table else f"{where} has no {key}")
    return " ".join(value.split())


def _names(where: str, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UsageError(f"{where}: {key} is {value!r}; it takes a list of buffer names")
    return tuple(value)
