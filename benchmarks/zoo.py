"""The zoo with every toggle, beside what three common habits say of the same programs.

    python benchmarks/zoo.py [--only NAME ...] [--pairs N] [--clean]

For each program: `detaudit check --explain` (verdict, cause, and for each toggle how many pairs were still apart); two
runs under torch's DebugMode with hashes of every operator, compared by its own check_hash_mismatches; the printed
losses of two plain runs, compared at 1e-6; two runs with every global generator seeded and
torch.use_deterministic_algorithms(True), compared by the digests that the programs print. The peers' runs are separate
processes too; DebugMode's logs travel by pickle. Without --only all faults run, with --clean the clean programs as
well: that takes hours.
"""

from __future__ import annotations

import argparse
import os
import pickle
import platform
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from detaudit.audit import Request, check  # noqa: E402
from detaudit.core.axes import AXES, PLAIN  # noqa: E402
from detaudit.core.model import Verdict  # noqa: E402
from detaudit.report.table import table  # noqa: E402
from tests.zoo.expectations import CLEAN, FAULTS, Case  # noqa: E402

TOLERANCE = 1e-6
COUNTED = ("loss", "params", "norm")
SAME, DIFFERS, FAILS, NOT_RUN = "same", "differs", "fails", "n/a"
INSIDE = "--inside"
"""First word of the command line of a peer's run: this file runs the program then, as the peer would."""


@dataclass(frozen=True)
class Row:
    """What everybody said of one program."""

    case: Case
    verdict: Verdict
    debug_mode: str
    losses: str
    seeded: str


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="only these programs")
    parser.add_argument("--pairs", metavar="N", type=int, default=1, help="pairs of each toggle (%(default)s)")
    parser.add_argument("--clean", action="store_true", help="the clean programs too")
    args = parser.parse_args(argv)
    cases = {case.name: case for case in [*FAULTS, *CLEAN]}
    unknown = set(args.only) - set(cases)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    chosen = args.only or [case.name for case in [*FAULTS, *(CLEAN if args.clean else [])]]
    rows = []
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measure(cases[name], args.pairs))
    print("\n".join(report(rows)))
    return 0


def measure(case: Case, pairs: int) -> Row:
    """Everybody's answer for one program, each in a working directory of its own that its two runs share."""
    return Row(case, audited(case, pairs), debug_mode(case), losses(case), seeded(case))


def audited(case: Case, pairs: int) -> Verdict:
    saved = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        os.environ.clear()
        os.environ.update(case.environment(saved))
        try:
            with chdir(work):
                return check(Request(tuple(case.command()), Path(folder) / "out", pairs=pairs, all_toggles=True))
        finally:
            os.environ.clear()
            os.environ.update(saved)


def debug_mode(case: Case) -> str:
    """What check_hash_mismatches says of two processes, each of which kept its log."""
    if not scripted(case):
        return NOT_RUN
    from torch.utils._debug_mode import DebugMode

    with tempfile.TemporaryDirectory() as folder:
        logs = []
        for label in "ab":
            path = Path(folder) / f"{label}.pickle"
            inside(case, "debug-mode", path, Path(folder))
            if not path.exists():
                return FAILS
            logs.append(pickle.loads(path.read_bytes()))
    try:
        found = DebugMode.check_hash_mismatches(*logs)
    except ValueError as error:
        return f"raises: {str(error).splitlines()[0][:40]}"
    return f"{DIFFERS}: {found[0]['call']} first of {len(found)}" if found else SAME


def losses(case: Case) -> str:
    """The losses that two plain runs print, as a person would compare them in a log."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [printed(run(case.command(), case, Path(folder))) for _ in range(2)]
    a, b = ([number for line in lines if line.startswith("loss") for number in numbers(line)] for lines in runs)
    if not a and not b:
        return NOT_RUN
    near = len(a) == len(b) and all(abs(x - y) <= TOLERANCE or x != x for x, y in zip(a, b, strict=True))
    return SAME if near else DIFFERS


def seeded(case: Case) -> str:
    """The usual recipe in front of the program: seed everything, ask torch for deterministic algorithms."""
    if not scripted(case):
        return NOT_RUN
    with tempfile.TemporaryDirectory() as folder:
        runs = [inside(case, "seeded", Path("-"), Path(folder)) for _ in range(2)]
    if any(done.returncode for done in runs):
        last = runs[0].stderr.decode(errors="replace").strip().splitlines()[-1:]
        return f"{FAILS}: {last[0][:40] if last else ''}"
    return SAME if printed(runs[0]) == printed(runs[1]) else DIFFERS


def scripted(case: Case) -> bool:
    """Whether the command is a plain script, which another process can run inside a peer."""
    return case.argv[0].endswith(".py")


def inside(case: Case, peer: str, path: Path, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    _, script, *arguments = case.command()
    return run([sys.executable, __file__, INSIDE, peer, str(path), script, *arguments], case, cwd)


def run(command: Sequence[str], case: Case, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, cwd=cwd, env=case.environment(), stdin=subprocess.DEVNULL, capture_output=True)


def printed(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """The lines with digests. Progress without a line break may stand before one."""
    lines = (
        line[line.find("loss") :] if "loss" in line else line
        for line in done.stdout.decode("utf-8", "replace").split("\n")
    )
    return [line for line in lines if line.startswith(COUNTED)]


def numbers(line: str) -> Iterator[float]:
    for word in line.split():
        if word.startswith(("0x", "-0x", "nan", "inf", "-inf")):
            yield float.fromhex(word)


def run_inside(peer: str, path: str, script: str, arguments: Sequence[str]) -> None:
    """In a process of its own: the program, as a peer has it run."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    if peer == "seeded":
        import random

        import numpy
        import torch

        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True)
        runpy.run_path(script, run_name="__main__")
        return
    from torch.utils._debug_mode import DebugMode

    with DebugMode() as mode, DebugMode.log_tensor_hashes():
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit:
            pass  # what it did until then is logged
    with open(path, "wb") as file:
        LogPickler(file).dump(mode.logs)


class LogPickler(pickle.Pickler):
    """Operators are no picklable objects; their names are."""

    def reducer_override(self, obj: Any) -> Any:
        import torch

        if isinstance(obj, torch._ops.OpOverload):
            return operator, (obj.namespace, obj._opname, obj._overloadname)
        return NotImplemented


def operator(namespace: str, name: str, overload: str) -> Any:
    import torch

    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def report(rows: Sequence[Row]) -> Iterator[str]:
    import torch

    threads, python = torch.get_num_threads(), platform.python_version()
    yield f"torch {torch.__version__}, {threads} threads, {platform.machine()}, Python {python}"
    yield ""
    head = ["program", "truth", "detaudit", "DebugMode hashes", "losses at 1e-6", "seeds and flag"]
    yield from table(
        head,
        [
            [row.case.name, row.case.verdict, str(row.verdict.outcome), row.debug_mode, row.losses, row.seeded]
            for row in rows
        ],
    )
    yield from verdicts(rows)
    explained = [row for row in rows if row.verdict.explanation]
    if explained:
        yield ""
        yield "pairs still apart with one thing changed"
        names = [PLAIN, *AXES]
        yield from table(["program", *names], [[row.case.name, *cells(row.verdict, names)] for row in explained])
        yield ""
        yield from table(
            ["program", "finding", "operator", "cause", "support"],
            [[row.case.name, *why(row.verdict)] for row in explained],
        )


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """How often each was right: a fault is noticed when the answer is not `same`, a clean program when it is."""
    columns = {
        "detaudit": [SAME if str(row.verdict.outcome) == "clean" else DIFFERS for row in rows],
        "DebugMode hashes": [row.debug_mode for row in rows],
        "losses at 1e-6": [row.losses for row in rows],
    }
    for name, answers in columns.items():
        told = [(row, answer) for row, answer in zip(rows, answers, strict=True) if answer not in (NOT_RUN, FAILS)]
        right = sum((answer == SAME) == (row.case.verdict == "clean") for row, answer in told)
        yield f"  {name}: right on {right} of the {len(told)} programs it could run"
    faults = [row.seeded for row in rows if row.case.verdict == "diverged" and row.seeded in (SAME, DIFFERS)]
    yield f"  seeds and flag: {faults.count(SAME)} of {len(faults)} faulty programs became repeatable"


def cells(verdict: Verdict, names: Sequence[str]) -> list[str]:
    found = {toggle.name: toggle for toggle in verdict.explanation.toggles} if verdict.explanation else {}
    return [f"{found[name].diverged}/{found[name].pairs}" if name in found else "" for name in names]


def why(verdict: Verdict) -> list[str]:
    found = verdict.explanation
    if found is None:
        return ["", "", "", ""]
    cause = found.cause
    return [str(found.kind), found.operator, cause.id if cause else "", cause.support if cause else ""]


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        run_inside(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    else:
        sys.exit(main(sys.argv[1:]))
