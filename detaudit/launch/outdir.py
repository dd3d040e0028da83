"""The directory that a command writes to: fresh, or an earlier result of ours that may be replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

from detaudit.core.errors import UsageError

MARKER = ".detaudit"
DEFAULT = "detaudit-out"


def prepare(path: Path | str) -> Path:
    """An empty directory at `path`, made or emptied. Raises UsageError for one that holds anything not ours."""
    directory = Path(path)
    if directory.exists():
        if not directory.is_dir():
            raise UsageError(f"{directory} is a file; --out takes a directory")
        if any(directory.iterdir()):
            if not (directory / MARKER).exists():
                raise UsageError(f"{directory} is not empty and was not written by detaudit; choose another --out")
            shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).write_text("written by detaudit; replaced by its next run\n")
    (directory / ".gitignore").write_text("*\n")
    return directory
