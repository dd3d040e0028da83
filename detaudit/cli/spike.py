"""The verb `detaudit spike`: detect, select, trace, report. Also the entry of the three scripts of the seed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detaudit.core.errors import DetauditError, UsageError
from detaudit.core.model import StepRecord

_KINDS = {"csv": "csv", "dump": "dump", "trend": "trend.db"}


class SpikeVerb:
    """Find where a gradient went wrong first, from msprobe monitor data, dumps, or trails with stats.

    detect  phase 1: abnormal gradients as (optimizer step, micro-step, rank, target)
    select  phase 2: the root coordinate, the earliest that explains the rest
    trace   phase 3: the layer at which dump A first leaves B, measured against C and D
    report  tables and plots of the three

    Exit 0: done, nothing abnormal; 1: an abnormal gradient or a divergence was found; 2: usage or unreadable input;
    3: the data do not decide, or a question to you stands in the result. `report` exits 0 when it has written.
    """

    name = "spike"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        phases = parser.add_subparsers(dest="spike_phase", required=True, metavar="detect|select|trace|report")
        _detect_arguments(phases.add_parser("detect", help="phase 1: abnormal gradients", description=_DETECT))
        _select_arguments(phases.add_parser("select", help="phase 2: the root coordinate", description=_SELECT))
        _trace_arguments(phases.add_parser("trace", help="phase 3: the first diverging layer", description=_TRACE))
        _report_arguments(phases.add_parser("report", help="tables and plots", description=_REPORT))

    def run(self, args: argparse.Namespace) -> int:
        if args.spike_phase == "report":
            return _report(args)
        result = {"detect": _detect, "select": _select, "trace": _trace}[args.spike_phase](args)
        return _deliver(args, result)


_DETECT = (
    "Phase 1. DATA is a trend.db, a monitor CSV file, directory or glob, a dump directory, or with --trail a directory "
    "of detaudit trails recorded with DETAUDIT_STATS=1. The kind is recognised unless a flag names it."
)
_SELECT = (
    "Phase 2. From phase-1 results alone: --phase1 for one device, --npu and --gpu for the abnormal side and its "
    "benchmark."
)
_TRACE = (
    "Phase 3. A is the abnormal dump, B its benchmark; C and D are a normal dump and its benchmark. Without C and D "
    "they are looked for beside A and B, under the conditions of the seed (needs --phase1), or you are asked."
)
_REPORT = "Render the results of the phases as text, Markdown, JSON or one HTML page with plots."


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="write the JSON result here")
    parser.add_argument("--json", action="store_true", help="print the JSON result instead of tables")
    parser.add_argument("--lang", choices=("en", "zh"), default="en", help="language of the headings (default en)")


def _detect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA")
    kind = parser.add_mutually_exclusive_group()
    for name, text in (
        ("csv", "monitor CSV"),
        ("dump", "dump_statistic directories"),
        ("trend", "trend.db"),
        ("trail", "detaudit trails"),
    ):
        kind.add_argument(f"--{name}", dest="kind", action="store_const", const=name, help=f"DATA is {text}")
    parser.add_argument("--metric", default="", help="metric to analyse (default: grad_unreduced, else grad_reduced)")
    parser.add_argument(
        "--window", type=int, default=0, metavar="K", help="micro-steps per optimizer step, if not recorded"
    )
    parser.add_argument(
        "--accumulation", choices=("cumulative", "independent"), default="", help="what norms inside a window are"
    )
    parser.add_argument(
        "--rate", type=_rate, default=0.01, help="false alarms per run that are accepted (default 0.01)"
    )
    parser.add_argument("--ratio", type=_ratio, default=2.0, help="smallest factor that counts as abnormal (default 2)")
    parser.add_argument("--limit", type=_positive, default=10, help="anomalies listed per micro-step (default 10)")
    parser.add_argument(
        "--world-size", type=int, default=0, metavar="N", help="ranks of the run, to notice missing ones"
    )
    parser.add_argument(
        "--parser", choices=("auto", "pyarrow", "csv"), default="auto", help="CSV parser (default auto)"
    )
    _output(parser)


def _select_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--phase1", metavar="P1.json", help="phase-1 result of the only device")
    parser.add_argument("--npu", metavar="P1.json", help="phase-1 result of the abnormal side")
    parser.add_argument("--gpu", metavar="P1.json", help="phase-1 result of the benchmark side (any device)")
    parser.add_argument("--growth", type=_ratio, default=2.0, help="growth of a rank that counts (default 2)")
    parser.add_argument("--majority", type=_share, default=0.6, help="share of ranks that must grow (default 0.6)")
    _output(parser)


def _trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dump-a", required=True, metavar="DIR", help="abnormal dump")
    parser.add_argument("--dump-b", required=True, metavar="DIR", help="its benchmark")
    parser.add_argument("--dump-c", default="", metavar="DIR", help="normal dump near A")
    parser.add_argument("--dump-d", default="", metavar="DIR", help="its benchmark")
    parser.add_argument("--phase1", metavar="P1.json", help="phase-1 result, to know which dumps are normal")
    parser.add_argument("--phase2", metavar="P2.json", help="phase-2 result, for the root coordinate")
    parser.add_argument("--coordinate", type=_coordinate, metavar="STEP:RANK", help="which dump of a directory A is")
    parser.add_argument("--micro-step", type=int, metavar="M", help="compare this pass alone")
    parser.add_argument("--no-control", action="store_true", help="compare A and B alone")
    _output(parser)


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    for phase in (1, 2, 3):
        parser.add_argument(f"--phase{phase}", metavar=f"P{phase}.json")
    parser.add_argument("--format", choices=("text", "markdown", "json", "html"), default="text")
    _output(parser)


def _rate(text: str) -> float:
    return _between(text, 0.0, 0.5, "a rate above 0 and below 0.5")


def _share(text: str) -> float:
    return _between(text, 0.0, 1.0000001, "a share above 0 and up to 1")


def _ratio(text: str) -> float:
    return _between(text, 1.0, 1e9, "a factor above 1")


def _between(text: str, low: float, high: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = low
    if not low < value < high:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _coordinate(text: str) -> tuple[int, int]:
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not STEP:RANK")
    return int(parts[0]), int(parts[1])


def open_trails(directory: str) -> Mapping[int, Iterable[StepRecord]]:
    """The trails of a directory by rank: the one place where spike meets the trail reader."""
    from detaudit.trail.reader import TrailReader  # type: ignore[import-not-found,unused-ignore]

    paths = [Path(directory)] if Path(directory).is_file() else sorted(Path(directory).rglob("*.trail"))
    if not paths:
        raise UsageError(f"{directory} holds no *.trail file")
    return {_rank_of(path, i): TrailReader(path) for i, path in enumerate(paths)}


def _rank_of(path: Path, place: int) -> int:
    digits = "".join(c for c in path.stem.rpartition("rank")[2] if c.isdigit()) if "rank" in path.stem else ""
    return int(digits) if digits else place


def _detect(args: argparse.Namespace) -> dict[str, Any]:
    from detaudit.spike import sources
    from detaudit.spike.detect import Options, detect

    progress = _progress()
    if args.kind == "trail":
        loaded = sources.load_trails(open_trails(args.data), args.data, progress)
    else:
        loaded = sources.load(args.data, _KINDS.get(args.kind or "", ""), args.metric, args.parser, progress)
    options = Options(args.window, args.accumulation, args.rate, args.ratio, args.limit, args.world_size)
    return detect(loaded, options)


def _select(args: argparse.Namespace) -> dict[str, Any]:
    from detaudit.spike import results
    from detaudit.spike.select import Rules, select

    if bool(args.phase1) == bool(args.npu) or bool(args.npu) != bool(args.gpu):
        raise UsageError("give either --phase1, or both --npu (abnormal side) and --gpu (benchmark side)")
    ours = results.load(args.phase1 or args.npu, 1)
    theirs = results.load(args.gpu, 1) if args.gpu else None
    return select(ours, theirs, Rules(args.growth, args.majority))


def _trace(args: argparse.Namespace) -> dict[str, Any]:
    from detaudit.spike import results
    from detaudit.spike.sides import Request, assemble, trace_sides

    request = Request(
        args.dump_a, args.dump_b, args.dump_c, args.dump_d, args.coordinate, args.micro_step, args.no_control
    )
    phase1 = results.load(args.phase1, 1) if args.phase1 else None
    phase2 = results.load(args.phase2, 2) if args.phase2 else None
    return trace_sides(assemble(request, phase1, phase2))


def _report(args: argparse.Namespace) -> int:
    from detaudit.spike import present, results, tables
    from detaudit.spike.present_html import html
    from detaudit.spike.wording import word

    paths = {1: args.phase1, 2: args.phase2, 3: args.phase3}
    found = {phase: results.load(path, phase) if path else None for phase, path in paths.items()}
    if not any(found.values()):
        raise UsageError("give at least one of --phase1, --phase2, --phase3")
    title = word("Spike localisation", args.lang)
    sections = tables.sections(found[1], found[2], found[3], args.lang)
    kind = "json" if args.json else args.format
    if kind == "json":
        text = results.dumps({f"phase{phase}": result for phase, result in found.items() if result})
    elif kind == "html":
        text = html(title, sections, found[1], found[2], found[3], args.lang)
    else:
        text = (present.markdown if kind == "markdown" else present.text)(title, sections)
    if args.output:
        results.write(args.output, text)
    else:
        sys.stdout.write(text)
    return 0


def _deliver(args: argparse.Namespace, result: dict[str, Any]) -> int:
    """JSON to -o or stdout, otherwise the tables of the phase; always the exit code of the result."""
    from detaudit.spike import present, results, tables
    from detaudit.spike.wording import word

    text = results.dumps(result)
    if args.output:
        results.write(args.output, text)
    if args.json:
        sys.stdout.write(text)
    elif not (args.output and getattr(args, "quiet", False)):
        phases = [result if result["phase"] == n else None for n in (1, 2, 3)]
        title = word("Spike localisation", args.lang)
        sys.stdout.write(present.text(title, tables.sections(phases[0], phases[1], phases[2], args.lang)))
    return int(result["exit_code"])


def _progress() -> Callable[[str, int, int], None]:
    """Progress on stderr: a line that renews itself on a terminal, else one line for every tenth."""
    said = {"tenth": -1, "what": ""}

    def show(what: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{what}: {done}/{total}" + ("\n" if done >= total else ""))
            return
        tenth = 10 * done // max(total, 1)
        if total >= 100 and (what, tenth) != (said["what"], said["tenth"]):
            said.update(what=what, tenth=tenth)
            sys.stderr.write(f"{what}: {done}/{total}\n")

    return show


def script(phase: str, prog: str, argv: Sequence[str] | None = None) -> int:
    """Entry of the scripts that carry the seed's names: JSON on stdout or in -o, nothing else on stdout."""
    verb = {
        "detect": (_detect_arguments, _detect, _DETECT),
        "select": (_select_arguments, _select, _SELECT),
        "trace": (_trace_arguments, _trace, _TRACE),
    }
    declare, run, description = verb[phase]
    parser = argparse.ArgumentParser(prog=prog, description=description)
    declare(parser)
    args = parser.parse_args(argv)
    args.json, args.quiet = not args.output, True
    try:
        return _deliver(args, run(args))
    except DetauditError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.exit_code
