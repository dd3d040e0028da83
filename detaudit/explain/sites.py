"""Where in the user's code an operator comes from: the innermost frame of his own, and for a backward operator the
line of its forward, found by the sequence number that autograd gives both."""

from __future__ import annotations

import sys
import sysconfig
from collections import OrderedDict
from pathlib import Path
from types import CodeType, FrameType

import torch

MAX_FRAMES = 200
MAX_FORWARD = 500_000
NO_SEQUENCE = 2**64 - 1
"""The sequence number of a node that accumulates a gradient: it has no forward line."""

_PACKAGE = str(Path(__file__).resolve().parents[1])
_NOT_USERS = (str(Path(torch.__file__).parent), *(str(Path(sysconfig.get_path(name))) for name in ("stdlib",)))
_INSTALLED = ("site-packages", "dist-packages")

USER, LIBRARY, MACHINERY, ENGINE, CHECKPOINT = range(5)
_ENGINE = ("torch/autograd/graph.py", "_engine_run_backward")
_CHECKPOINT = "torch/utils/checkpoint.py"

Place = tuple[str, int, str]


class Sites:
    """Finds places and gives each a number. `NOWHERE` stands for an operator without a frame of the user."""

    NOWHERE: Place = ("", 0, "")

    def __init__(self) -> None:
        self._kinds: dict[CodeType, int] = {}
        self._forward: OrderedDict[int, tuple[Place, str]] = OrderedDict()

    def here(self) -> tuple[Place, bool]:
        """The innermost frame of the user's code (of an installed library where no user frame is on the stack), and
        whether the autograd engine was called from there."""
        frame: FrameType | None = sys._getframe(1)
        library: Place = self.NOWHERE
        crossed = False
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            kind = self._kind(frame.f_code)
            if kind == ENGINE:
                crossed = True
            elif kind in (USER, LIBRARY):
                place = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
                if kind == USER:
                    return place, crossed
                library = library if library[0] else place
            frame = frame.f_back
        return library, crossed

    def recomputing(self) -> bool:
        """Whether the calling code is run by a checkpoint, inside the innermost call of the engine."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            kind = self._kind(frame.f_code)
            if kind in (ENGINE, CHECKPOINT):
                return kind == CHECKPOINT
            frame = frame.f_back
        return False

    def _kind(self, code: CodeType) -> int:
        kind = self._kinds.get(code)
        if kind is None:
            kind = self._kinds[code] = _kind_of(code.co_filename, code.co_name)
        return kind

    def forward(self, place: Place, module: str) -> None:
        """Remember the place under the number of the autograd node that was made last. Only the first operator after
        a node is made belongs to it; those that follow without making one must not take its place."""
        number = torch._C._autograd._get_sequence_nr() - 1
        if number not in self._forward:
            self._forward[number] = (place, module)
            if len(self._forward) > MAX_FORWARD:
                self._forward.popitem(last=False)

    def origin(self, node: object) -> tuple[Place, str] | None:
        """The forward place and module of a backward node; None where it was not traced."""
        number = node._sequence_nr()  # type: ignore[attr-defined]
        return None if number == NO_SEQUENCE else self._forward.get(number)


def _kind_of(file: str, function: str) -> int:
    if file.endswith(_CHECKPOINT):
        return CHECKPOINT
    if file.endswith(_ENGINE[0]) and function == _ENGINE[1]:
        return ENGINE
    if file.startswith("<") or file.startswith(_PACKAGE):
        return USER if f"{_PACKAGE}/workloads" in file else MACHINERY
    if any(part in file for part in _INSTALLED):
        return MACHINERY if file.startswith(_NOT_USERS[0]) else LIBRARY
    return MACHINERY if file.startswith(_NOT_USERS) else USER
