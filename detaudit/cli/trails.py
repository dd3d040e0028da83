"""Finds the trails that a path names: a trail file, a run directory, or the directory of an audit with its runs."""

from __future__ import annotations

from pathlib import Path

from detaudit.compare.evidence import TRAIL_SUFFIX
from detaudit.core.errors import UnreadableError
from detaudit.trail.reader import TrailReader


def find_trails(path: Path) -> dict[str, Path]:
    """Trail files by label: the file's own name, or `RUN/NAME` in the directory of an audit, sorted.

    Raises UnreadableError for a path that does not exist or holds no trail.
    """
    if path.is_file():
        return {path.name.removesuffix(TRAIL_SUFFIX): path}
    if not path.exists():
        raise UnreadableError(f"{path} does not exist; name a trail, a run directory or the directory of an audit")
    files = sorted(path.glob("*" + TRAIL_SUFFIX)) or sorted(path.glob("*/*" + TRAIL_SUFFIX))
    if not files:
        raise UnreadableError(f"{path} holds no trail (*{TRAIL_SUFFIX}), nor does any directory in it")
    return {file.relative_to(path).as_posix().removesuffix(TRAIL_SUFFIX): file for file in files}


def open_trails(path: Path) -> dict[str, TrailReader]:
    """The trails of a path, opened and their frames verified. Raises UnreadableError and its kind."""
    return {label: TrailReader(file) for label, file in find_trails(path).items()}
