"""The trail: appending, size, and the first divergence of a long pair: `python benchmarks/trail.py [--steps N]`.

`main` writes two trails that differ from one step and leaf on, in turns (`write_pair`), then times in interleaved
rounds opening (every frame verified), finding the first divergence with both trails open, a plain scan of the steps,
a torn trail, and the recomputation of the chain. Peers: a flush of JSON lines with hexadecimal digests, and raw rows
without any check. The clock counts the thread's own processor time, the kernel's share included, so that other work
on a busy machine does not stand in the figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from detaudit.compare.first import compare_trails
from detaudit.core.model import Layout, Leaf, RunManifest
from detaudit.trail.manifest import cpu_model
from detaudit.trail.reader import TrailReader
from detaudit.trail.writer import TrailWriter

BYTES_GOAL = 8.1
"""Most bytes a leaf and step without stats (issue 2)."""
FIND_GOAL = 10.0
"""Most milliseconds to the first divergence of 10,000 steps of 1,000 leaves, trails open and warm (issue 2)."""


def write_pair(folder: Path, steps: int, leaves: int, at: int) -> dict[str, list[float]]:
    """Write trails `a` and `b` and the peers, and return the seconds of each append. `b` differs from step `at` on."""
    names = (f"param.block{index // 10}.weight{index % 10}" for index in range(leaves))
    layout = Layout(tuple(Leaf(name, "float32", (8, 8)) for name in names))
    chance = random.Random(1)
    constant = [chance.getrandbits(64) for _ in range(leaves * 3 // 10)]
    a, b = (TrailWriter(folder / name, RunManifest({"command": ["train"]})) for name in "ab")
    times: dict[str, list[float]] = {"trail": [], "JSON line, hex": [], "raw row": []}
    with open(folder / "jsonl", "w") as jsonl, open(folder / "raw", "wb", buffering=0) as raw:
        for step in range(steps):
            fresh = struct.unpack(f"<{leaves - len(constant)}Q", chance.randbytes(8 * (leaves - len(constant))))
            digests = [*constant, *fresh]
            start = time.thread_time()
            a.step(step, layout, digests)
            times["trail"].append(time.thread_time() - start)
            start = time.thread_time()
            jsonl.write(json.dumps({"step": step, "digests": [f"{digest:016x}" for digest in digests]}) + "\n")
            jsonl.flush()
            times["JSON line, hex"].append(time.thread_time() - start)
            start = time.thread_time()
            raw.write(struct.pack(f"<{leaves}Q", *digests))
            times["raw row"].append(time.thread_time() - start)
            if step >= at:
                digests[421 % leaves] ^= 1
            b.step(step, layout, digests)
    for writer in (a, b):
        writer.note("end", outcome="ok")
        writer.close()
    return times


def clock(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return (time.thread_time() - start) * 1e3


def read(folder: Path, at: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each way of reading, round by round."""

    def open_and_close(name: str) -> None:
        TrailReader(folder / name).close()

    def find() -> None:
        finding = compare_trails(a, b).finding
        assert finding is not None and finding.first.step == at

    def scan() -> None:
        assert next(i for i in range(len(a)) if a.raw_digests(i) != b.raw_digests(i)) == at

    torn = (folder / "a").stat().st_size - 1234
    shutil.copy(folder / "a", folder / "torn")
    with open(folder / "torn", "r+b") as file:
        file.truncate(torn)
    times: dict[str, list[float]] = {}
    with TrailReader(folder / "a") as a, TrailReader(folder / "b") as b:
        jobs: dict[str, Callable[[], object]] = {
            "first divergence, both open": find,
            "first divergence by a scan": scan,
            "open one (verifies all frames)": lambda: open_and_close("a"),
            "open a torn one": lambda: open_and_close("torn"),
            "recompute the chain": a.verify_chain,
        }
        for number in range(rounds + 1):
            for name, job in jobs.items():
                spent = clock(job)
                if number:  # the first round warms up
                    times.setdefault(name, []).append(spent)
    return times


def row(name: str, values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"  {name:32} {min(values):9.2f} {middle:9.2f} [{low:.2f}-{high:.2f}]"


def verdict(met: bool, text: str) -> bool:
    print(f"  {'met' if met else 'MISSED'}: {text}")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--leaves", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    at = options.steps * 9345 // 10_000
    print(f"{cpu_model()}; python {platform.python_version()}, xxhash {xxhash.VERSION}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        appended = write_pair(folder, options.steps, options.leaves, at)
        print(f"\nappend of {options.leaves} digests, us: least, median [quartiles]")
        for candidate, seconds in appended.items():
            print(row(candidate, [value * 1e6 for value in seconds]))
        size = (folder / "a").stat().st_size / (options.steps * options.leaves)
        met = [verdict(size <= BYTES_GOAL, f"goal <= {BYTES_GOAL} bytes a leaf and step: {size:.3f}")]
        found = read(folder, at, options.rounds)
        print(f"\npair of {options.steps} steps x {options.leaves} leaves, ms: least, median [quartiles]")
        for candidate, milliseconds in found.items():
            print(row(candidate, milliseconds))
        usual = statistics.median(found["first divergence, both open"])
        met.append(verdict(usual <= FIND_GOAL, f"goal <= {FIND_GOAL:.0f} ms: median {usual:.2f}"))
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
