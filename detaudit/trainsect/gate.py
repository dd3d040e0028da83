"""The gate: no verdict rests on a replay that is not bit-exact.

`identity` reads top to bottom: `refuse` (ranks, device, environment), the recorded interval replayed twice by
targets built anew, every leaf of both recorded by the audit's recorder; each replay held to the recording (batches,
generators, losses, every leaf of every checkpoint), the two trails to each other. Any disagreement halts with the
first step and leaf. A clean result is a certificate: `fits` says when it may be used again.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from detaudit import certificate
from detaudit.capture import host_generators, install
from detaudit.capture.recorder import Recorder
from detaudit.compare.evidence import open_run as open_trails
from detaudit.compare.runs import judge
from detaudit.core import env
from detaudit.core.errors import InconclusiveError, UnreadableError, UsageError
from detaudit.core.model import Outcome, StepKind, Verdict
from detaudit.core.names import Selection
from detaudit.launch import outdir
from detaudit.trainsect import checkpoint, environment_fit, state, target
from detaudit.trainsect.execute import Execution, Mismatch, Request, WrongBatch
from detaudit.trainsect.run import RecordedRun

SCHEMA = "detaudit.trainsect.gate/1"
NAME = "gate.json"


class GateError(InconclusiveError):
    """The gate halts. `step`, `leaf`, `expected` and `found` tell where; `leaf` is empty for a refusal."""

    def __init__(self, text: str, step: int | None = None, leaf: str = "", expected: str = "", found: str = "") -> None:
        super().__init__(text)
        self.step, self.leaf, self.expected, self.found = step, leaf, expected, found


@dataclass(frozen=True)
class Passed:
    """A clean identity replay of [start, stop). `parameters` maps each checkpoint met to the SHA-256 of the model's
    parameters, equal in both replays and in the recording."""

    start: int
    stop: int
    steps_compared: int
    leaves_compared: int
    parameters: Mapping[int, str]
    certificate: str
    warnings: tuple[str, ...] = ()
    evaluations: Mapping[int, float] = field(default_factory=dict)


def identity(run: RecordedRun, path: Path, start: int, stop: int, out: Path) -> Passed:
    """Replay [start, stop) twice and compare. `out` receives trails and the certificate.

    Raises GateError (exit 3) for a disagreement or a refusal, UsageError for a target that does not fit."""
    refuse(run, start, stop)
    directory = outdir.prepare(out)
    evaluations = {e.step: e.loss for e in run.evaluations if start <= e.step <= stop}
    request = Request(start, stop, evaluate_at=tuple(sorted(evaluations)))
    for label in ("A", "B"):
        execution = _replay(run, path, request, directory / label, first=label == "A")
        _hold_to_recording(execution, evaluations, label)
    verdict = _judge(directory)
    _hold_to_each_other(verdict, start)
    return _pass(run, path, request, verdict, directory)


def refuse(run: RecordedRun, start: int, stop: int) -> None:
    """Raises GateError where no replay of [start, stop) could be trusted here: no recorder data, no checkpoint at its
    end, another device or environment. Sets torch's thread count to the recorder's."""
    if not run.instrumented:
        raise GateError(f"{run.directory} has no recorder data: an identity replay has nothing to be held to")
    if stop <= start:
        raise UsageError(f"an identity replay of [{start}, {stop}) holds no step")
    missing = [step for step in range(start, stop) if step not in run.steps]
    if missing:
        raise GateError(f"step {missing[0]} of [{start}, {stop}) was not recorded", missing[0], "step")
    if stop not in run.checkpoints:
        raise GateError(
            f"no checkpoint of step {stop} to hold the replay's end to; choose one of the recorded ones", stop
        )
    if any(device.startswith("cuda") for device in run.settings.get("device", ())) and not torch.cuda.is_available():
        raise GateError("the run was recorded on a GPU and this machine has none: its kernels cannot be audited here")
    threads = run.settings.get("threads")
    if isinstance(threads, int):
        torch.set_num_threads(threads)
    for leaf, recorded, here in environment_fit.differences(run.settings, run.flags):
        text = (
            f"the environment is not the recorded one: {leaf} was {recorded}, is {here}; replays would not be bit-exact"
        )
        raise GateError(text, start, leaf, recorded, here)


def _replay(run: RecordedRun, path: Path, request: Request, out: Path, first: bool) -> Execution:
    """One replay by a target built anew, its leaves recorded by the audit's recorder into `out`."""
    out.mkdir(parents=True)
    built = target.build(path)
    execution = Execution(run, built, identity=True)
    execution.begin(request.start)
    if first:
        target.check_evaluate(built, request.start)
        rows = run.steps[request.start].ids
        if rows:
            target.check_fetch(built, rows[0], request.start)
    generators = [host_generators.watch_python(), host_generators.watch_numpy()]
    _audit_steps(execution, install.install(env.Settings(str(out.resolve())), generators))
    outcome = "error"
    try:
        execution.steps(request.start, request.stop, request)
        execution.finish(request)
        outcome = "complete"
    except WrongBatch as error:
        execution.trace.mismatches.append(error.mismatch)
    finally:
        install.uninstall(outcome)
    return execution


def _audit_steps(execution: Execution, recorder: Recorder) -> None:
    """One step of the trail for each step of the run, with what no hook of torch sees: averages, loop values."""
    recorder.marked_by_user = recorder.optimizer_made = True
    objects = execution.target.state()
    for value in objects.values():
        if isinstance(value, torch.nn.Module):
            recorder.introduce(value)
        elif isinstance(value, torch.optim.Optimizer):
            recorder.namer.name(value)
    others = {n: v for n, v in objects.items() if not isinstance(v, torch.nn.Module | torch.optim.Optimizer)}

    def close(step: int) -> None:
        encoded = checkpoint.encode(state.take(others), copy=False)
        for leaf, text in encoded.leaves.items():
            recorder.add(f"state.{leaf}", text)
        recorder.close_step(StepKind.MARKED)

    execution.after_step = close


def _hold_to_recording(execution: Execution, evaluations: Mapping[int, float], label: str) -> None:
    found = [*execution.trace.mismatches]
    for step, loss in evaluations.items():
        replayed = execution.trace.evaluations.get(step, loss)  # absent only behind a wrong batch
        if loss.hex() != replayed.hex():
            found.append(Mismatch(step, "evaluation", repr(loss), repr(replayed)))
    if found:
        first = min(found, key=lambda mismatch: mismatch.step)
        raise GateError(
            f"replay {label} leaves the recording: first divergent step {first.step}, leaf {first.leaf}: "
            f"recorded {first.expected}, replayed {first.found}",
            first.step,
            first.leaf,
            first.expected,
            first.found,
        )


def _judge(directory: Path) -> Verdict:
    return judge(open_trails(directory / "A", "A"), open_trails(directory / "B", "B"), Selection())


def _hold_to_each_other(verdict: Verdict, start: int) -> None:
    if verdict.outcome is Outcome.CLEAN:
        return
    first = verdict.first_divergence
    if first is None:
        raise GateError(f"the two replays could not be compared: {verdict.reason}")
    step = start + first.step
    raise GateError(
        f"the two replays differ: first divergent step {step}, leaf {first.leaf}: {first.run_a}, then {first.run_b}; "
        "replay is not bit-exact, so nothing can be concluded from it",
        step,
        first.leaf,
        first.run_a,
        first.run_b,
    )


def _pass(run: RecordedRun, path: Path, request: Request, verdict: Verdict, directory: Path) -> Passed:
    runs = [open_trails(directory / label, label) for label in ("A", "B")]
    written = certificate.write(verdict, runs, directory)
    parameters = {
        step: entry.parameters_sha256
        for step, entry in sorted(run.checkpoints.items())
        if request.start <= step <= request.stop
    }
    passed = Passed(
        start=request.start,
        stop=request.stop,
        steps_compared=verdict.steps_compared,
        leaves_compared=verdict.leaves_compared,
        parameters=parameters,
        certificate=str(written),
        warnings=(*run.warnings, *verdict.warnings),
        evaluations={e.step: e.loss for e in run.evaluations if e.step in request.evaluate_at},
    )
    value = binding(run, path) | {
        "schema": SCHEMA,
        "start": request.start,
        "stop": request.stop,
        "parameters": {str(step): sha for step, sha in parameters.items()},
        "certificate_sha256": certificate.sha256_file(written),
        "steps_compared": verdict.steps_compared,
        "leaves_compared": verdict.leaves_compared,
    }
    (directory / NAME).write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")
    return passed


def binding(run: RecordedRun, path: Path) -> dict[str, Any]:
    """What a certificate of the gate is bound to: the recording, the target's code, environment and device."""
    return {
        "run": run.digest,
        "target": target.code_sha256(path),
        "environment": json.loads(json.dumps(environment_fit.deciding(), default=str)),
    }


def fits(directory: Path, run: RecordedRun, path: Path, start: int, stop: int) -> str:
    """Why the gate's result in `directory` does not license replays over [start, stop); empty when it does.

    It fits when recording, target code, environment and device are the same, its interval covers [start, stop), and
    its certificate still verifies. A certificate over other steps says nothing of these."""
    try:
        value = json.loads((directory / NAME).read_text("utf-8"))
        certified = certificate.verify(directory / certificate.NAME)
    except (OSError, ValueError, UnreadableError) as error:
        return f"{directory} holds no certificate that verifies: {error}"
    if value.get("schema") != SCHEMA or not certified:
        return f"{directory / NAME} is not of schema {SCHEMA}"
    if value["certificate_sha256"] != certificate.sha256_file(directory / certificate.NAME):
        return "the certificate has changed since the gate wrote it"
    for key, here in binding(run, path).items():
        if value[key] != here:
            return f"it was made for another {key}"
    if not value["start"] <= start <= stop <= value["stop"]:
        return f"it covers the steps [{value['start']}, {value['stop']}), asked are [{start}, {stop})"
    return ""


def require(run: RecordedRun, path: Path, start: int, stop: int, out: Path) -> str:
    """The path of a certificate that fits [start, stop), made on the spot where there is none. Raises GateError."""
    if out.exists() and not fits(out, run, path, start, stop):
        return str(out / certificate.NAME)
    with warnings.catch_warnings():
        return identity(run, path, start, stop, out).certificate
