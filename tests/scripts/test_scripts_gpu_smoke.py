"""scripts/gpu-smoke.sh: what it says without a GPU, and that a failure or a run of skips does not pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detaudit.digest.launcher import KernelsUnavailableError, usable_cupy

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu-smoke.sh"


def run(python, path=None):
    env = {**os.environ, "PYTHON": str(python), **({"PATH": path} if path else {})}
    return subprocess.run([SCRIPT], capture_output=True, text=True, env=env, cwd="/")


def test_without_a_gpu_it_says_so():
    try:
        usable_cupy()
    except KernelsUnavailableError as error:
        done = run(sys.executable)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == f"no GPU: {error}\n"
    else:
        pytest.skip("kernels can run here")


def stand_in(tmp_path, look, tests, benchmark):
    """A `python` that finds a GPU or not, and whose tests and benchmark end as told; no nvcc on PATH."""
    python = tmp_path / "python"
    python.write_text(
        "#!/usr/bin/env bash\n"
        f'case "$1" in\n  -) echo looked; exit {look} ;;\n  -m) {tests} ;;\n  *) exit {benchmark} ;;\nesac\n'
    )
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("tests", "benchmark", "code", "told"),
    [
        ("echo '40 passed in 3 s'", 0, 0, "passed"),
        ("echo '40 skipped in 3 s'", 0, 1, "FAILED"),
        ("echo '1 failed, 39 passed'; exit 1", 0, 1, "FAILED"),
        ("echo '40 passed in 3 s'", 1, 1, "FAILED"),
    ],
    ids=["all well", "skips alone", "a failure", "a missed goal"],
)
def test_the_table_and_the_exit_code(tmp_path, tests, benchmark, code, told):
    done = run(stand_in(tmp_path, 0, tests, benchmark), path="/usr/bin:/bin")
    assert done.returncode == code, done.stderr
    assert told in done.stdout.split("check ", 1)[1]
    assert "tests marked gpu" in done.stdout and "benchmarks/digest_gpu.py" in done.stdout


def test_an_interpreter_that_cannot_look_is_an_error(tmp_path):
    done = run(stand_in(tmp_path, 9, "exit 9", 9))
    assert done.returncode == 1 and "could not look for a GPU (exit 9)" in done.stderr
