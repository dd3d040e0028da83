"""The verbs `trainsect diagnose`, `verify` and `demo`: find what broke a run, show it again, see it done."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

from detaudit.cli import options
from detaudit.core.errors import EXIT_CLEAN, EXIT_DIVERGED, EXIT_INCONCLUSIVE, UsageError

HEALTHY = ("NO-COLLAPSE", "TRANSIENT")
UNDECIDED = ("UNPROVEN", "UNCERTAIN", "INSUFFICIENT")
NAMES = ("report.json", "report.md", "report.html")


class DiagnoseVerb:
    """Find what broke a run: interval of checkpoints, shard, batch and sample, by counterfactual replays.

    Exit code 0: no collapse; 1: a collapse and its cause; 3: not proven, too little evidence, or the replay is not
    bit-exact. Every replay is kept under RUN/diagnosis/cache: a diagnosis that was killed goes on where it stopped.
    """

    name = "diagnose"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
        parser.add_argument("--target", metavar="FILE", type=Path, help="Python file with build()")
        parser.add_argument("--out", metavar="DIR", type=Path, help="where the report goes (RUN/diagnosis)")
        parser.add_argument(
            "--predicate", choices=("rescue", "seed"), default="rescue",
            help="of the checkpoint search: rescue by benign data, or the seed's, which misses latent damage",
        )  # fmt: skip
        parser.add_argument("--budget", metavar="N", type=options.positive, default=45, help="replays of each search")
        parser.add_argument("--relative", metavar="X", type=float, default=0.15, help="smallest rise that counts")
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.target is None:
            raise UsageError("a diagnosis needs --target FILE, a Python file with build()")
        value = diagnose_into(args.run, args.target, args.out or args.run / "diagnosis", args)
        return _show(args, value)


class VerifyVerb:
    """Check a report: its own hash, the files it rests on, and its minimal replays run again.

    Exit code 1 when anything differs. A report that verifies was not changed; who wrote it is not shown.
    """

    name = "verify"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("report", metavar="REPORT", type=Path, help="report.json of a diagnosis")
        parser.add_argument("--run", metavar="DIR", type=Path, help="the run directory (the report's parent's parent)")
        parser.add_argument("--target", metavar="FILE", type=Path, help="the target, when it has moved")
        parser.add_argument(
            "--only", metavar="NAME", action="append", default=[], help="identity, necessity, sufficiency"
        )
        parser.add_argument("--no-replay", action="store_true", help="hashes alone")
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from detaudit.trainsect import check, evidence

        value = evidence.read(args.report)
        directory = args.run or args.report.resolve().parent.parent
        found = check.check_files(value, directory)
        sound = not any(each.problem for each in found)
        if sound and not args.no_replay and value["repro"]:
            # Only a whole report decides what is executed again.
            found += check.check_replays(value, _replayer(directory, args.target or Path(value["target"])), args.only)
        failed = [each for each in found if each.problem]
        if args.json:
            rows = [{"what": each.what, "problem": each.problem} for each in found]
            options.print_json({"schema": "detaudit.trainsect.verify/1", "verified": not failed, "checks": rows})
        else:
            for each in failed or found:
                print(f"{'FAILED' if each.problem else 'ok'}: {each.what} {each.problem}".rstrip())
            replayed = "" if not args.no_replay else "; nothing was replayed"
            print(f"{'FAILED' if failed else 'VERIFIED'}: {len(found)} checks{replayed}")
        return EXIT_DIVERGED if failed else EXIT_CLEAN


class DemoVerb:
    """Record a small run that collapses, and diagnose it: `mlp` (one bad sample) or `transformer` (a concentration).

    Exit code 0 when the verdict is the one the demonstration is built for, else 1.
    """

    name = "demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("demo", choices=("mlp", "transformer"))
        parser.add_argument("--stripped", action="store_true", help="without recorder data: the forensic mode")
        parser.add_argument("--out", metavar="DIR", type=Path, help="keep run and report here (a new directory)")
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.out is not None:
            if args.out.exists() and any(args.out.iterdir()):
                raise UsageError(f"{args.out} is not empty; give a new directory")
            return self._demo(args, args.out)
        with tempfile.TemporaryDirectory(prefix="trainsect-") as made:
            return self._demo(args, Path(made))

    def _demo(self, args: argparse.Namespace, out: Path) -> int:
        from detaudit.trainsect.demos import run as demos

        options.progress(f"recording the {args.demo} demonstration")
        directory = demos.record_demo(args.demo, out / "run")
        if args.stripped:
            directory = demos.strip(directory, out / "stripped", demos.module_of(args.demo).BATCH)
        value = diagnose_into(directory, demos.target_of(args.demo), directory / "diagnosis", None)
        _show(args, value)
        verdict = value["verdict"]
        expected = demos.EXPECTED[args.demo, args.stripped]
        return EXIT_CLEAN if (verdict["status"], tuple(verdict["shards"])) == expected else EXIT_DIVERGED


def diagnose_into(directory: Path, target: Path, out: Path, args: argparse.Namespace | None) -> dict[str, Any]:
    """Diagnose, write the three files into `out`, return the report's value. The gate is passed first."""
    from detaudit.trainsect import evidence, evidence_html, evidence_text, gate
    from detaudit.trainsect.collapse import CollapseKind, detect
    from detaudit.trainsect.diagnosis import Options, diagnose
    from detaudit.trainsect.replay import TargetReplayer
    from detaudit.trainsect.run import open_run

    chosen = Options(args.predicate, args.budget, args.relative) if args is not None else Options()
    run = open_run(directory)
    began = monotonic()
    out.mkdir(parents=True, exist_ok=True)
    seen = detect(run.evaluations, relative=chosen.relative)
    if seen.kind is CollapseKind.COLLAPSE and run.instrumented and run.checkpoints and seen.bad_step is not None:
        stop = min((step for step in run.checkpoints if step >= seen.bad_step), default=max(run.checkpoints))
        options.progress(f"gate: [{min(run.checkpoints)}, {stop}) replayed twice, every leaf compared")
        gate.require(run, target, min(run.checkpoints), stop, out / "gate")
    replayer = TargetReplayer(run, target, out / "cache")
    found = diagnose(run, replayer, chosen, options.progress)
    timing = {"seconds": round(monotonic() - began, 3), "replays": replayer.replays, "steps": replayer.executed}
    value = evidence.report_value(found, timing, str(target))
    pages = (evidence.dumps(value), evidence_text.markdown(value), evidence_html.html(value))
    for name, text in zip(NAMES, pages, strict=True):
        (out / name).write_text(text, "utf-8")
    options.progress(f"report: {out / NAMES[0]}")
    return value


def _replayer(directory: Path, target: Path) -> Any:
    from detaudit.trainsect.replay import TargetReplayer
    from detaudit.trainsect.run import open_run

    return TargetReplayer(open_run(directory), target)


def _show(args: argparse.Namespace, value: dict[str, Any]) -> int:
    if args.json:
        options.print_json(value)
    else:
        print(value["verdict"]["sentence"])
        for row in value["controls"]:
            mark = {True: "ok", False: "FAILED", None: "not run"}[row["passed"]]
            print(f"  {row['name']}: {row['collapsed']}/{row['of']} collapsed, {mark}")
        for dose in (value["dose"] or {}).get("doses", []):
            print(f"  dose {dose['batches']} batches: {dose['collapsed']}/{dose['of']} collapsed")
        print(f"{value['timing']['replays']} replays, {value['timing']['seconds']:.1f} s")
    status = value["verdict"]["status"]
    if status in HEALTHY:
        return EXIT_CLEAN
    return EXIT_INCONCLUSIVE if status in UNDECIDED else EXIT_DIVERGED
