"""The digest on a GPU against its peers, one table: `python benchmarks/digest_gpu.py [--gib N] [--rounds N]`.

`main` runs `large` (the kernels over 1 GiB beside a read-only sum, a device copy, torch.hash_tensor, copy + xxhash and
the single-block kernel), `small` (1,000 leaves of 512 bytes) and `rebuild` (a tree of 65,536 leaves, single-block
beside two launches, where these kernels are in the tree). Each candidate is timed by CUDA events, interleaved; ratios
are taken within a round. Exit 0 when the goals of issue 4 are met, 1 when one is missed, 3 without a usable GPU.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable

import numpy as np
import torch

from detaudit.core.errors import EXIT_INCONCLUSIVE
from detaudit.digest import host
from detaudit.digest.device import DeviceDigester, plan
from detaudit.digest.launcher import CupyLauncher, KernelsUnavailableError, Launcher, usable_cupy

SHARE_GOAL, SMALL_GOAL = 0.8, 100.0
"""Least share of a read-only sum's bandwidth; most microseconds for 1,000 small leaves (issue 4)."""

Candidates = dict[str, Callable[[], object]]


def timed(candidate: Callable[[], object]) -> float:
    """Milliseconds between two events around a call, on the current stream."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    candidate()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def interleaved(candidates: Candidates, rounds: int) -> dict[str, list[float]]:
    names = list(candidates)
    for candidate in candidates.values():
        candidate()
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name].append(timed(candidates[name]))
    return times


class Prepared:
    """A table of leaves already on the device, so that a call is the kernels alone."""

    def __init__(self, tensors: list[torch.Tensor], launcher: Launcher) -> None:
        table, start, self._chunks = plan(tensors, [tensor.data_ptr() for tensor in tensors])
        self._held = torch.from_numpy(table).cuda()
        self._roots = torch.empty(len(tensors), dtype=torch.int64, device="cuda")
        self._count, self._launcher = np.uint32(len(tensors)), launcher
        rows = self._held.data_ptr()
        self._pointers = tuple(np.uint64(at) for at in (rows, rows + 8 * start, self._roots.data_ptr()))

    def many_blocks(self) -> None:
        rows, messages, roots = self._pointers
        self._launcher.launch("leaf_digest", "leaf_chunks", self._chunks, 256, (rows, self._count, messages))
        self._launcher.launch("leaf_digest", "leaf_roots", int(self._count), 256, (rows, messages, roots))

    def single_block(self) -> None:
        rows, messages, roots = self._pointers
        name = "leaf_digest_single_block"
        self._launcher.launch(name, name, 1, 1024, (rows, self._count, messages, roots))

    def roots(self) -> list[int]:
        return [value & (2**64 - 1) for value in self._roots.tolist()]


def large(gib: float, rounds: int, launcher: Launcher) -> bool:
    tensor = torch.randn(int(gib * 2**28), device="cuda")
    words, copy, prepared = tensor.view(torch.int64), torch.empty_like(tensor), Prepared([tensor], launcher)
    digester = DeviceDigester(tensor.device, launcher)
    fast: Candidates = {
        "read-only int64 sum": lambda: words.sum(),
        "device copy": lambda: copy.copy_(tensor),
        "detaudit kernels": prepared.many_blocks,
        "detaudit digest, read": lambda: digester.digest([tensor]),
        "torch.hash_tensor": lambda: torch.hash_tensor(words),
    }
    slow: Candidates = {
        "single-block kernel": prepared.single_block,
        "copy + xxhash": lambda: host.tensor_digest(tensor),
    }
    times = interleaved(fast, rounds) | interleaved(slow, 3)
    print(f"\n{gib:g} GiB, {rounds} rounds (slow ones 3)     ms: median   GB/s read   share of read-only sum")
    for name, spent in times.items():
        base = statistics.median(times["read-only int64 sum"])
        usual = statistics.median(spent)
        print(f"  {name:25} {usual:23.3f} {tensor.nbytes / usual / 1e6:11.0f} {base / usual:24.2f}")
    expected = host.tensor_digest(tensor)
    same = all(
        run() is None and prepared.roots() == [expected] for run in (prepared.many_blocks, prepared.single_block)
    )
    pairs = zip(times["read-only int64 sum"], times["detaudit kernels"], strict=True)
    share = statistics.median(a / b for a, b in pairs)
    return goal(same, "both kernels gave the host's digest") & goal(
        share >= SHARE_GOAL, f"share of the read-only sum >= {SHARE_GOAL}: {share:.2f}"
    )


def small(rounds: int, launcher: Launcher) -> bool:
    leaves = [torch.randn(128, device="cuda") for _ in range(1000)]
    prepared, digester = Prepared(leaves, launcher), DeviceDigester(leaves[0].device, launcher)
    candidates: Candidates = {
        "detaudit kernels": prepared.many_blocks,
        "detaudit digest, read": lambda: digester.digest(leaves),
        "torch.hash_tensor each": lambda: [torch.hash_tensor(leaf) for leaf in leaves],
        "copy + xxhash each": lambda: [host.tensor_digest(leaf) for leaf in leaves],
        "single-block kernel": prepared.single_block,
    }
    times = interleaved(candidates, rounds)
    print(f"\n1,000 leaves of 512 B, {rounds} rounds      us: least      median")
    for name, spent in times.items():
        print(f"  {name:25} {1e3 * min(spent):22.1f} {1e3 * statistics.median(spent):11.1f}")
    usual = 1e3 * statistics.median(times["detaudit kernels"])
    return goal(usual <= SMALL_GOAL, f"1,000 leaves in <= {SMALL_GOAL:.0f} us: {usual:.1f}")


def rebuild(rounds: int, launcher: Launcher) -> bool:
    """Single block, two launches and torch operations."""
    from detaudit.workloads.kernel_tree import KernelRebuild, TwoLaunchRebuild
    from detaudit.workloads.sumtree import leaves, new_tree, rebuild_levels

    nodes = new_tree(65_536, torch.device("cuda"))
    leaves(nodes).copy_(torch.rand(65_536))
    forms = {"single block": KernelRebuild(launcher), "two launches": TwoLaunchRebuild(launcher)}
    candidates: Candidates = {name: functools.partial(rebuild, nodes) for name, rebuild in forms.items()}
    candidates["torch ops"] = functools.partial(rebuild_levels, nodes)
    times = interleaved(candidates, rounds)
    print(f"\nrebuild of 65,536 leaves, {rounds} rounds   us: median")
    for name, spent in times.items():
        print(f"  {name:25} {1e3 * statistics.median(spent):23.1f}")
    trees = []
    for rebuild_once in candidates.values():
        nodes[:65_536].zero_()
        rebuild_once()
        trees.append(nodes.clone())
    return goal(
        all(torch.equal(tree, trees[-1]) for tree in trees), "the kernels' trees equal the one by torch operations"
    )


def goal(met: bool, text: str) -> bool:
    print(f"  {'met' if met else 'MISSED'}: {text}")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    try:
        cupy = usable_cupy()
    except KernelsUnavailableError as error:
        print(f"no GPU to measure on: {error}", file=sys.stderr)
        return EXIT_INCONCLUSIVE
    name = torch.cuda.get_device_name()
    print(f"{name}; torch {torch.__version__} (CUDA {torch.version.cuda}), cupy {cupy.__version__}")
    launcher = CupyLauncher(torch.device("cuda", torch.cuda.current_device()))
    parts = [large(given.gib, given.rounds, launcher), small(given.rounds, launcher), rebuild(given.rounds, launcher)]
    return 0 if all(parts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
