"""The one table of DETAUDIT_* environment variables: read once, validated, unknown names refused.

The variables are how `detaudit check` and `detaudit record` talk to the recorder inside the user's process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from detaudit.core.axes import AXES
from detaudit.core.errors import UsageError

PREFIX = "DETAUDIT_"

FIRST_DIVERGENCE = -1
"""Stands in `dump_steps` for the step at which a pair of runs first differs: only a double run can know it."""


@dataclass(frozen=True)
class Variable:
    """One row of the table: its meaning, the values it accepts, and its default as text."""

    meaning: str
    legal: str
    default: str
    parse: Callable[[str], object]


@dataclass(frozen=True)
class Settings:
    """What the recorder was asked to do. `directory` is empty when nothing is to be recorded."""

    directory: str = ""
    every: int = 1
    steps: int = 0
    stats: bool = False
    leaves: tuple[str, ...] = ()
    dump: bool = False
    dump_steps: tuple[int, ...] = (0, 1, 2)
    dump_leaves: tuple[str, ...] = ()
    dump_directory: str = ""
    dump_max_bytes: int = 2**28
    trace: tuple[int, int] | None = None
    """First and last step that is traced operator by operator; None traces nothing."""
    trace_reruns: int = 3
    toggle: str = ""
    """An axis of `core/axes.py` that the run is an experiment on; empty for a plain run."""
    trainsect: str = ""
    """What `trainsect record` or a re-execution asks of the process, as JSON; empty for neither."""

    @property
    def active(self) -> bool:
        return bool(self.directory)

    @property
    def dump_place(self) -> str:
        """The directory that receives the dump: `dump_directory`, else `dump` beside the trails."""
        return self.dump_directory or os.path.join(self.directory, DUMP_NAME)


DUMP_NAME = "dump"
_FIRST = "first-divergence"


def _text(raw: str) -> str:
    return raw


def _positive(raw: str) -> int:
    number = int(raw)
    if number < 1:
        raise ValueError(raw)
    return number


def _count(raw: str) -> int:
    number = int(raw)
    if number < 0:
        raise ValueError(raw)
    return number


def _window(raw: str) -> tuple[int, int] | None:
    if not raw:
        return None
    first, last = map(_count, raw.split(":"))
    if first > last:
        raise ValueError(raw)
    return first, last


def _switch(raw: str) -> bool:
    return {"0": False, "1": True}[raw]


def _axis(raw: str) -> str:
    if raw and raw not in AXES:
        raise ValueError(raw)
    return raw


def _object(raw: str) -> str:
    if raw and not isinstance(json.loads(raw), dict):
        raise ValueError(raw)
    return raw


def parse_globs(raw: str) -> tuple[str, ...]:
    """Split a comma-separated list of leaf globs; blanks are dropped."""
    return tuple(part.strip() for part in raw.split(",") if part.strip())


def parse_steps(raw: str) -> tuple[int, ...]:
    """`0,1,2,first-divergence` as sorted step numbers. Raises ValueError for any other word, and for none."""
    steps = {FIRST_DIVERGENCE if part.strip() == _FIRST else _count(part) for part in raw.split(",")}
    return tuple(sorted(steps))


TABLE: dict[str, Variable] = {
    "DETAUDIT_DIR": Variable("directory that receives the trails of this run", "a path", "", _text),
    "DETAUDIT_EVERY": Variable("record every K-th step", "an integer >= 1", "1", _positive),
    "DETAUDIT_STEPS": Variable("end the run after N steps; 0 is no limit", "an integer >= 0", "0", _count),
    "DETAUDIT_STATS": Variable("record sums of squares and counts beside the digests", "0 or 1", "0", _switch),
    "DETAUDIT_LEAVES": Variable(
        "leaf globs; '!glob' leaves out, 'actgrad.*' opts in", "globs parted by commas", "", parse_globs
    ),
    "DETAUDIT_DUMP": Variable("keep the raw bytes of leaves (a dump) beside their digests", "0 or 1", "0", _switch),
    "DETAUDIT_DUMP_STEPS": Variable(
        "the steps that are dumped", f"step numbers, and {_FIRST}, parted by commas", "0,1,2", parse_steps
    ),
    "DETAUDIT_DUMP_LEAVES": Variable(
        "the leaves that are dumped, all when empty; '!glob' leaves out", "globs parted by commas", "", parse_globs
    ),
    "DETAUDIT_DUMP_DIR": Variable(
        "directory that receives the dump; empty is dump beside the trails", "a path", "", _text
    ),
    "DETAUDIT_DUMP_MAX_BYTES": Variable(
        "raw bytes that one process dumps at most", "an integer >= 1", str(2**28), _positive
    ),
    "DETAUDIT_TRACE": Variable("trace steps K0 to K1 operator by operator", "K0:K1 with K0 <= K1", "", _window),
    "DETAUDIT_TRACE_RERUNS": Variable(
        "how often a traced operator is run again on its inputs", "an integer >= 0", "3", _count
    ),
    "DETAUDIT_TOGGLE": Variable(
        "change this one thing, for an experiment", f"one of {', '.join(AXES)}, or nothing", "", _axis
    ),
    "DETAUDIT_TRAINSECT": Variable(
        "set by `trainsect record` and its re-executions: what to record, what to exchange",
        "a JSON object",
        "",
        _object,
    ),
}

_FIELDS = {
    "DETAUDIT_DIR": "directory",
    "DETAUDIT_EVERY": "every",
    "DETAUDIT_STEPS": "steps",
    "DETAUDIT_STATS": "stats",
    "DETAUDIT_LEAVES": "leaves",
    "DETAUDIT_DUMP": "dump",
    "DETAUDIT_DUMP_STEPS": "dump_steps",
    "DETAUDIT_DUMP_LEAVES": "dump_leaves",
    "DETAUDIT_DUMP_DIR": "dump_directory",
    "DETAUDIT_DUMP_MAX_BYTES": "dump_max_bytes",
    "DETAUDIT_TRACE": "trace",
    "DETAUDIT_TRACE_RERUNS": "trace_reruns",
    "DETAUDIT_TOGGLE": "toggle",
    "DETAUDIT_TRAINSECT": "trainsect",
}


def read(environ: Mapping[str, str]) -> Settings:
    """Settings from an environment. Raises UsageError for an unknown DETAUDIT_* name or an illegal value."""
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in TABLE:
            raise UsageError(f"unknown environment variable {name}; the legal names are {', '.join(TABLE)}")
    values: dict[str, object] = {}
    for name, row in TABLE.items():
        raw = environ.get(name, row.default)
        try:
            values[_FIELDS[name]] = row.parse(raw)
        except (ValueError, KeyError):
            raise UsageError(f"{name}={raw!r} is not legal; it takes {row.legal}") from None
    return Settings(**values)  # type: ignore[arg-type]


def write(settings: Settings) -> dict[str, str]:
    """The variables that make `read` return these settings; defaults are written too, so nothing is inherited."""
    return {
        "DETAUDIT_DIR": settings.directory,
        "DETAUDIT_EVERY": str(settings.every),
        "DETAUDIT_STEPS": str(settings.steps),
        "DETAUDIT_STATS": "1" if settings.stats else "0",
        "DETAUDIT_LEAVES": ",".join(settings.leaves),
        "DETAUDIT_DUMP": "1" if settings.dump else "0",
        "DETAUDIT_DUMP_STEPS": spell_steps(settings.dump_steps),
        "DETAUDIT_DUMP_LEAVES": ",".join(settings.dump_leaves),
        "DETAUDIT_DUMP_DIR": settings.dump_directory,
        "DETAUDIT_DUMP_MAX_BYTES": str(settings.dump_max_bytes),
        "DETAUDIT_TRACE": ":".join(map(str, settings.trace or ())),
        "DETAUDIT_TRACE_RERUNS": str(settings.trace_reruns),
        "DETAUDIT_TOGGLE": settings.toggle,
        "DETAUDIT_TRAINSECT": settings.trainsect,
    }


def spell_steps(steps: tuple[int, ...]) -> str:
    """The text that `parse_steps` reads."""
    return ",".join(_FIRST if step == FIRST_DIVERGENCE else str(step) for step in steps)


def refuse_first_divergence(settings: Settings) -> None:
    """Raises UsageError where a single run is asked to dump a step that only a pair can know."""
    if settings.dump and FIRST_DIVERGENCE in settings.dump_steps:
        raise UsageError(
            f"DETAUDIT_DUMP_STEPS={spell_steps(settings.dump_steps)}: where two runs first differ takes two runs, and "
            "this is one; use it with `detaudit check`, or name the steps"
        )


def with_dump(settings: Settings, environ: Mapping[str, str], label: str = "") -> Settings:
    """The settings with the dump that the user's environment asks for. `label` parts the runs of an audit that share
    one DETAUDIT_DUMP_DIR. Raises UsageError as `read` does."""
    asked = read({name: value for name, value in environ.items() if name.startswith(PREFIX)})
    return replace(
        settings,
        dump=asked.dump,
        dump_steps=asked.dump_steps,
        dump_leaves=asked.dump_leaves,
        dump_directory=os.path.abspath(os.path.join(asked.dump_directory, label)) if asked.dump_directory else "",
        dump_max_bytes=asked.dump_max_bytes,
    )
