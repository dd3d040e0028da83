"""Which steps, leaves and bytes are dumped. Stands between the recorder and the writer; see `capture/install.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from detaudit.core.env import Settings, refuse_first_divergence
from detaudit.core.names import Selection, matches, occurrence
from detaudit.dump.manifest import Header
from detaudit.dump.writer import DumpWriter


class Gate:
    """Which leaves are asked for, and which of those that were asked for have been met."""

    def __init__(self, steps: tuple[int, ...], leaves: tuple[str, ...]) -> None:
        self.steps = frozenset(steps)
        self._chosen = Selection.parse(leaves)
        self._unseen_steps = set(steps)
        self._unseen_leaves = list(self._chosen.include)

    def admits(self, step: int, leaf: str) -> bool:
        """Whether this leaf, named with its occurrence, is asked for at this step."""
        if step not in self.steps:
            return False
        self._unseen_steps.discard(step)
        if leaf not in self._chosen:
            return False
        self._unseen_leaves = [glob for glob in self._unseen_leaves if not matches(leaf, glob)]
        return True

    @property
    def unseen_steps(self) -> list[int]:
        return sorted(self._unseen_steps)

    @property
    def unseen_leaves(self) -> list[str]:
        return self._unseen_leaves


class DumpSink:
    """Takes leaves from a recorder and dumps those that the settings ask for, into a directory a process.

    A dump that cannot be written says so on stderr and in its manifest, and stops; the recording goes on.
    """

    def __init__(self, settings: Settings, process: Callable[[], str]) -> None:
        self._settings = settings
        self._process = process
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._gate = Gate(self._settings.dump_steps, self._settings.dump_leaves)
        self._writer: DumpWriter | None = None
        self._stopped = False

    def take(self, step: int, name: str, value: object) -> None:
        """A leaf as the recorder digests it; `name` comes without occurrence."""
        if self._stopped or step not in self._gate.steps:
            return
        try:
            writer = self._open()
            if self._gate.admits(step, occurrence(name, writer.next_occurrence(step, name))):
                writer.add(step, name, value)
            else:
                writer.pass_by(step, name)
        except OSError as error:
            self._stop(f"the dump cannot be written: {error.strerror or error}")

    def close(self, outcome: str, trained: bool) -> None:
        """Write the end of the dump. A process that trained and met no asked step leaves an empty one, so that it is
        no guess whether the dump was on."""
        if self._stopped or (self._writer is None and not trained):
            return
        self._stopped = True
        try:
            self._open().close(outcome, self._gate.unseen_steps, self._gate.unseen_leaves)
        except OSError as error:
            self._stop(f"the dump cannot be written: {error.strerror or error}")

    def after_fork(self) -> None:
        """In a forked child: the parent's dump is not the child's to write."""
        if self._writer is not None:
            self._writer.abandon()
        self._begin_anew()

    def _open(self) -> DumpWriter:
        if self._writer is None:
            process, asked = self._process(), self._settings
            header = Header(process, tuple(sys.argv), asked.dump_steps, asked.dump_leaves, asked.dump_max_bytes)
            self._writer = DumpWriter(Path(asked.dump_place) / process, header)
        return self._writer

    def _stop(self, reason: str) -> None:
        self._stopped = True
        print(f"detaudit: {reason}", file=sys.stderr)
        if self._writer is not None and not self._writer.closed:
            try:
                self._writer.close(f"error: {reason}")
            except OSError:
                pass  # said on stderr; the missing end says it to the reader


def open_sink(settings: Settings, process: Callable[[], str]) -> DumpSink:
    """The sink of a recorder. `process` names the process once it has begun to train.

    Raises UsageError for steps that a single run cannot know.
    """
    refuse_first_divergence(settings)
    return DumpSink(settings, process)
