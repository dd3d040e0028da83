"""The gate for re-executions: the script twice from its start, every leaf compared, and both held to the recording."""

from __future__ import annotations

import json
from pathlib import Path

from detaudit import certificate
from detaudit.compare.evidence import open_run as open_trails
from detaudit.compare.runs import judge
from detaudit.core.model import Outcome
from detaudit.core.names import Selection
from detaudit.launch import outdir
from detaudit.trainsect.execute import Request
from detaudit.trainsect.gate import NAME, SCHEMA, GateError, Passed
from detaudit.trainsect.launch import PROCESS
from detaudit.trainsect.rerun import RerunReplayer, differences


def identity(replayer: RerunReplayer, stop: int, out: Path) -> Passed:
    """Re-execute [0, stop) twice. Raises GateError naming the first step and leaf that differ."""
    run = replayer.run
    directory = outdir.prepare(out)
    request = Request(0, stop)
    places = []
    for label in ("A", "B"):
        again = replayer.execute(request, directory / label, trails=True)
        first = differences(run, again, stop)
        if first is not None:
            raise GateError(
                f"re-execution {label} leaves the recording: first divergent step {first.step}, leaf {first.leaf}: "
                f"recorded {first.expected[:60]}, found {first.found[:60]}",
                first.step,
                first.leaf,
                first.expected,
                first.found,
            )
        places.append(open_trails(directory / label / PROCESS, label))
    verdict = judge(places[0], places[1], Selection())
    if verdict.outcome is not Outcome.CLEAN:
        found = verdict.first_divergence
        step, leaf = (found.step, found.leaf) if found else (None, "")
        raise GateError(f"the two re-executions are not bit-exact: {verdict.reason}", step, leaf)
    parameters = {s: c.parameters_sha256 for s, c in sorted(run.checkpoints.items()) if s <= stop}
    value = {
        "schema": SCHEMA,
        "run": run.digest,
        "start": 0,
        "stop": stop,
        "parameters": {str(step): sha for step, sha in parameters.items()},
        "trails": {
            f"{label}/{name}": certificate.sha256_file(trail.path)
            for label, evidence in zip("AB", places, strict=True)
            for name, trail in evidence.trails.items()
        },
    }
    path = directory / NAME
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")
    return Passed(0, stop, verdict.steps_compared, verdict.leaves_compared, parameters, str(path), run.warnings)
