"""Load beside a run: a busy process for every core."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Looks at its parent now and then: a killed audit must not leave a machine at full load.
_SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1_000_000))\n"


@contextmanager
def busy(processes: int | None = None) -> Iterator[list[int]]:
    """Keeps the processor busy inside the block, with one process a core unless told otherwise; yields their ids."""
    count = (os.cpu_count() or 1) if processes is None else processes
    spinning = [subprocess.Popen([sys.executable, "-S", "-E", "-c", _SPIN]) for _ in range(count)]
    try:
        yield [process.pid for process in spinning]
    finally:
        for process in spinning:
            process.kill()
        for process in spinning:
            process.wait()
