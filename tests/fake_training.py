"""Stands in for a recorded training: writes a trail into $DETAUDIT_DIR without torch.

    python fake_training.py [clean | diverge:STEP | fail:STATUS | torn | silent | unloaded | garbage | resume | print |
                            cured:TOGGLE]

`cured:TOGGLE` diverges from step 4 on unless that toggle is applied, and fails under `workers-0`. The n-th run of a
command counts itself in the file `runs` of the working directory where it must differ from the first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from detaudit.core.model import Layout, Leaf, RunManifest, Stats
from detaudit.trail.writer import TrailWriter

LAYOUT = Layout((Leaf("rng.torch", "uint8", (16,)), Leaf("loss", "float32", ()), Leaf("param.w", "float32", (2,))))


def main(how: str) -> int:
    directory = Path(os.environ["DETAUDIT_DIR"])
    if how != "unloaded":
        (directory / "loaded").touch()
    if how in ("silent", "unloaded"):
        return 0
    if how == "garbage":
        (directory / "main.trail").write_bytes(b"DETAUDIT")
        return 0
    word, _, number = how.partition(":")
    if word == "print":
        print(f"process {os.getpid()}")
    toggle = os.environ.get("DETAUDIT_TOGGLE", "")
    if word == "cured" and toggle == "workers-0":
        sys.exit("RuntimeError: no workers, no training")
    if word == "cured" and toggle != number:
        how, word, number = "diverge:4", "diverge", "4"
    write(directory, int(number or 0) if word == "diverge" else None, torn=how == "torn")
    if word == "resume":
        Path("checkpoint.pt").write_text("state")
        write(directory, None if count_run() == 1 else 0, name="resumed")
    return int(number) if word == "fail" else 0


def write(directory: Path, differs_from: int | None, torn: bool = False, name: str = "main") -> None:
    settings = {key: int(os.environ[f"DETAUDIT_{key.upper()}"]) for key in ("every", "steps", "stats")}
    toggle = os.environ.get("DETAUDIT_TOGGLE", "")
    decisive = {"command": sys.argv, **({"toggle": toggle} if toggle else {})}
    writer = TrailWriter(directory / f"{name}.trail", RunManifest(decisive, settings))
    shift = count_run() if differs_from is not None and name == "main" else 1
    shift = 2 if name == "resumed" and differs_from is not None else shift
    for step in range(min(settings["steps"] or 10, 10)):
        if step % settings["every"] == 0:
            late = shift if differs_from is not None and step >= differs_from else 1
            digests = [step, step * 7 + late, step * 9 + late]
            stats = [Stats(digest, digest / 8, 0.0, 1.0, 0, 0) for digest in digests] if settings["stats"] else []
            writer.step(step, LAYOUT, digests, stats)
    if not torn:
        writer.note("end", outcome="complete")
    writer.close()


def count_run() -> int:
    """1 for the first run in this working directory, 2 for the next; a command that reads its own past diverges."""
    file = Path("runs")
    count = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(count))
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "clean"))
