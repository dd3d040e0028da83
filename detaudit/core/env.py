"""The one table of DETAUDIT_* environment variables: read once, validated, unknown names refused.

The variables are how `detaudit check` and `detaudit record` talk to the recorder inside the user's process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from detaudit.core.axes import AXES
from detaudit.core.errors import UsageError

PREFIX = "DETAUDIT_"


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
    trace: tuple[int, int] | None = None
    """First and last step that is traced operator by operator; None traces nothing."""
    trace_reruns: int = 3
    toggle: str = ""
    """An axis of `core/axes.py` that the run is an experiment on; empty for a plain run."""

    @property
    def active(self) -> bool:
        return bool(self.directory)


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


def parse_globs(raw: str) -> tuple[str, ...]:
    """Split a comma-separated list of leaf globs; blanks are dropped."""
    return tuple(part.strip() for part in raw.split(",") if part.strip())


TABLE: dict[str, Variable] = {
    "DETAUDIT_DIR": Variable("directory that receives the trails of this run", "a path", "", _text),
    "DETAUDIT_EVERY": Variable("record every K-th step", "an integer >= 1", "1", _positive),
    "DETAUDIT_STEPS": Variable("end the run after N steps; 0 is no limit", "an integer >= 0", "0", _count),
    "DETAUDIT_STATS": Variable("record sums of squares and counts beside the digests", "0 or 1", "0", _switch),
    "DETAUDIT_LEAVES": Variable(
        "leaf globs; '!glob' leaves out, 'actgrad.*' opts in", "globs parted by commas", "", parse_globs
    ),
    "DETAUDIT_TRACE": Variable("trace steps K0 to K1 operator by operator", "K0:K1 with K0 <= K1", "", _window),
    "DETAUDIT_TRACE_RERUNS": Variable(
        "how often a traced operator is run again on its inputs", "an integer >= 0", "3", _count
    ),
    "DETAUDIT_TOGGLE": Variable(
        "change this one thing, for an experiment", f"one of {', '.join(AXES)}, or nothing", "", _axis
    ),
}

_FIELDS = {
    "DETAUDIT_DIR": "directory",
    "DETAUDIT_EVERY": "every",
    "DETAUDIT_STEPS": "steps",
    "DETAUDIT_STATS": "stats",
    "DETAUDIT_LEAVES": "leaves",
    "DETAUDIT_TRACE": "trace",
    "DETAUDIT_TRACE_RERUNS": "trace_reruns",
    "DETAUDIT_TOGGLE": "toggle",
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
        "DETAUDIT_TRACE": ":".join(map(str, settings.trace or ())),
        "DETAUDIT_TRACE_RERUNS": str(settings.trace_reruns),
        "DETAUDIT_TOGGLE": settings.toggle,
    }
