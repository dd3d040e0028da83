"""The public `record(...)`: for people who name their own leaves.

    with detaudit.record(model, optimizer, out="run-a") as audit:
        for batch in loader:
            ...
            audit.leaf("per.priority_tree", tree)
            audit.step()

Under `detaudit check` or `detaudit record` the session joins the recorder that is already in the process. Without
either, and without `out`, it does nothing at all: the same script runs audited or not.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from torch import nn
from torch.optim import Optimizer

from detaudit.capture import host_generators, install
from detaudit.capture.recorder import Recorder, event
from detaudit.core import env
from detaudit.core.errors import UsageError
from detaudit.core.model import StepKind


class Session:
    """A recording in which the user closes the steps himself. `active` tells whether anything is recorded."""

    def __init__(self, recorder: Recorder | None, owned: bool) -> None:
        self._found = recorder
        self._owned = owned
        self._before = False

    @property
    def active(self) -> bool:
        return self._found is not None

    @property
    def recorder(self) -> Recorder:
        """The recorder behind the session. Raises UsageError for an inactive one."""
        if self._found is None:
            raise UsageError("this session records nothing: give record(..., out=DIR) or run under `detaudit check`")
        return self._found

    def leaf(self, name: str, value: object) -> None:
        """Digest a value as it is now (a tensor of any shape and dtype, an array, or plain values) under `name`."""
        if self.active:
            self._leaf(name, value)

    def step(self) -> None:
        """Close the step: everything since the step before it."""
        if self.active:
            self._step()

    def __enter__(self) -> Session:
        if self.active:
            self._before, self.recorder.marked_by_user = self.recorder.marked_by_user, True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active:
            self.recorder.marked_by_user = self._before
        if self._owned:
            install.uninstall(f"exception {kind.__name__}" if kind else "complete")
            self._found, self._owned = None, False

    @event
    def _leaf(self, name: str, value: object) -> None:
        self.recorder.add(name, value)

    @event
    def _step(self) -> None:
        self.recorder.close_step(StepKind.MARKED)


def record(
    *objects: nn.Module | Optimizer,
    out: str | Path | None = None,
    every: int = 1,
    stats: bool = False,
    leaves: tuple[str, ...] = (),
) -> Session:
    """A session over models and optimizers (found by themselves when they are used; naming them here gives them the
    caller's variable names from the start).

    `out` is a directory for the trail, made if missing; under `detaudit check` it is ignored, and the verdict says so.
    `every` records each K-th step; `stats` keeps sums of squares beside the digests; `leaves` are globs as in
    `--leaves`. Raises UsageError when `out` holds a trail, or another session of this process is still open.
    """
    for target in objects:
        _check(target)
    found = install.current()
    owned = False
    if found is not None and out is not None:
        if not found.settings.directory == os.environ.get("DETAUDIT_DIR"):
            raise UsageError(f"record(out={str(out)!r}): this process is being recorded already")
        text = f"record(out={str(out)!r}) joined the audit around it; nothing was written there"
        found.note_once("session out", "warning", text=text)
    if found is None and out is not None:
        directory = Path(out)
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.glob("*.trail")):
            raise UsageError(f"{directory} holds a trail already; a trail is never overwritten")
        settings = env.with_dump(env.Settings(str(directory), every, 0, stats, tuple(leaves)), os.environ)
        found, owned = install.install(settings, [host_generators.watch_python(), host_generators.watch_numpy()]), True
    if found is not None:
        for target in objects:
            _introduce(found, target)
    return Session(found, owned)


def _check(target: object) -> None:
    if not isinstance(target, nn.Module | Optimizer):
        raise UsageError(f"record() takes modules and optimizers, not a {type(target).__name__}: {target!r:.80}")


def _introduce(recorder: Recorder, target: nn.Module | Optimizer) -> None:
    if isinstance(target, nn.Module):
        recorder.introduce(target)
    else:
        recorder.optimizer_made = True
        recorder.namer.name(target)
