"""Which files of the working directory a run created or changed: run B may have resumed from run A's checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

CACHES = frozenset({".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "__pycache__"})
SKIPPED = CACHES | {".git", ".venv", "venv", "node_modules"}
LIMIT = 50_000
"""Files looked at; a larger tree is cut there, and the result says so."""


def snapshot(root: Path, leave_out: Path | None = None) -> dict[str, tuple[int, int]]:
    """Relative path -> (modification time in ns, size) of the files under `root`, without `leave_out` and caches."""
    found: dict[str, tuple[int, int]] = {}
    outside = leave_out.resolve() if leave_out else None
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in SKIPPED and (Path(folder) / name).resolve() != outside
        )
        for name in sorted(names):
            if len(found) >= LIMIT:
                return found
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            found[os.path.relpath(path, root)] = (status.st_mtime_ns, status.st_size)
    return found


def changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> list[str]:
    """The paths that are new or different, sorted; a last entry tells when the tree was larger than LIMIT."""
    paths = sorted(path for path, status in after.items() if before.get(path) != status)
    if len(after) >= LIMIT:
        paths.append(f"... only the first {LIMIT} files were looked at")
    return paths
