"""How often the quick check names the right leaf for each injected fault, and how often a clean run stays clean.

Runs scripts/determinism-check.sh as a user would, N times a fault, one after the other on cores that should be idle
(load hides races between intra-op threads and provokes those between host threads).

    python benchmarks/faults.py [--times N] [--only FAULT ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EQUAL = {"checksums.sample_prng", "checksums.replay_sample_indices"}

EXPECTED: dict[str, tuple[str, int, set[str]]] = {
    "": ("", 0, set()),
    "tree-stale-read": ("checksums.priority_tree", 0, EQUAL),
    "tree-rebuild-race": ("checksums.priority_tree", 0, EQUAL),
    "tree-walk-flip": ("checksums.replay_sample_indices", 0, {"checksums.sample_prng", "checksums.walked_tree"}),
    "prng-drift": ("checksums.sample_prng", 0, set()),
    "encoder-race": ("grad.*", 0, {"checksums.encoder_output", "checksums.loss"}),
    "late:150:tree-rebuild-race": ("checksums.priority_tree", 150, EQUAL),
}
"""Fault -> the first leaf as a glob, the least step, and leaves of that step that must be equal."""


def check(fault: str, directory: str, steps: int) -> tuple[int, dict[str, object]]:
    """Exit status and verdict of one quick check over a number of training steps."""
    command = [str(ROOT / "scripts" / "determinism-check.sh"), "--quick", "--json", "--out", directory]
    command += ["--steps", str(steps)]
    command += ["--inject", fault] if fault else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def right(fault: str, status: int, verdict: dict[str, object]) -> bool:
    glob, least, equal = EXPECTED[fault]
    if not fault:
        return status == 0 and verdict["verdict"] == "clean"
    first = verdict["first_divergence"]
    if status != 1 or not isinstance(first, dict):
        return False
    diverging = {leaf["leaf"] for leaf in verdict["diverging_leaves"]}  # type: ignore[attr-defined]
    return fnmatchcase(first["leaf"], glob) and first["step"] >= least and not diverging & equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200, help="training steps a run (%(default)s)")
    parser.add_argument("--only", nargs="*", choices=list(EXPECTED), default=list(EXPECTED))
    args = parser.parse_args()
    print(f"{'fault':28} {'right':>7}  {'s a check':>9}  first step  first leaves")
    for fault in args.only:
        hits, steps, leaves, started = 0, [], Counter(), time.perf_counter()
        for _ in range(args.times):
            with tempfile.TemporaryDirectory() as directory:
                status, verdict = check(fault, os.path.join(directory, "out"), args.steps)
            hits += right(fault, status, verdict)
            first = verdict["first_divergence"] or {"step": "-", "leaf": verdict["verdict"]}
            steps.append(first["step"])  # type: ignore[index]
            leaves[first["leaf"]] += 1  # type: ignore[index]
        seconds = (time.perf_counter() - started) / args.times
        shown = ", ".join(f"{leaf} ({count})" for leaf, count in leaves.most_common(3))
        print(
            f"{fault or '(none)':28} {hits:>3}/{args.times:<3}  {seconds:9.1f}  {min(steps)}..{max(steps)}  {shown}",
            flush=True,
        )


if __name__ == "__main__":
    main()
