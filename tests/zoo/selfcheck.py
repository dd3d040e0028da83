"""Proves the zoo without detaudit: runs each case twice (or N times) and compares the digests it prints.

    python tests/zoo/selfcheck.py [--runs N] [CASE...]

A clean program must print the same bits in every run, a faulty one different bits in at least 9 of 10 pairs of runs.
Only lines that begin with `loss`, `params` or `norm` count. The runs of a case follow one another in one working
directory, as in an audit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path

from expectations import CASES, Case

COUNTED = (b"loss", b"params", b"norm")


def run(case: Case, cwd: Path) -> tuple[int, tuple[bytes, ...], bytes, float]:
    """Exit status, the counted lines, stderr and the wall time of one run."""
    started = time.perf_counter()
    done = subprocess.run(case.command(), cwd=cwd, env=case.environment(), capture_output=True, timeout=300)
    lines = (line[line.find(b"loss") :] if b"loss" in line else line for line in done.stdout.splitlines())
    counted = tuple(line for line in lines if line.startswith(COUNTED))
    return done.returncode, counted, done.stderr, time.perf_counter() - started


def check(case: Case, runs: int) -> tuple[int, str, float]:
    """How many pairs of the runs differ, what is wrong with a run, and the shortest wall time."""
    with tempfile.TemporaryDirectory() as folder:
        done = [run(case, Path(folder)) for _ in range(runs)]
    wrong = ""
    for number, (status, lines, errors, _) in enumerate(done):
        expected = case.status if number == 0 or case.status_b is None else case.status_b
        if status != expected:
            wrong = f"exit status {status} of run {number}, expected {expected}: {errors[-600:]!r}"
        elif not lines and case.verdict != "inconclusive":
            wrong = "prints no digest"
    differing = sum(one[1] != other[1] for one, other in combinations(done, 2))
    return differing, wrong, min(wall for *_, wall in done)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names of cases (default: all)")
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="runs a case; all pairs of them are compared")
    args = parser.parse_args()
    pairs = args.runs * (args.runs - 1) // 2
    unknown = set(args.cases) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    failed = []
    for case in CASES:
        if args.cases and case.name not in args.cases:
            continue
        differing, wrong, wall = check(case, args.runs)
        holds = differing >= 0.9 * pairs if case.differs else differing == 0 or case.status_b is not None
        mark = "ok" if holds and not wrong else "WRONG"
        if mark != "ok":
            failed.append(case.name)
        print(f"{mark:5} {case.name:30} differ {differing}/{pairs} {wall:5.1f} s {wrong}".rstrip(), flush=True)
    print(f"{len(failed)} wrong{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
