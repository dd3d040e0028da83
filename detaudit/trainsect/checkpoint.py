"""Checkpoints: one file a step, written whole or not at all, read with `weights_only=True`, checked by SHA-256.

The file goes under a temporary name beside its place, is synced, then renamed; on a full disk it is removed and every
earlier checkpoint is as it was. The sidecar (`.json`) is written after it, so a sidecar always has its file.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from detaudit.core.errors import InconclusiveError, UnreadableError
from detaudit.trainsect import leaves as leaf_room
from detaudit.trainsect.codec import Decoder, Encoder, dumps, owned
from detaudit.trainsect.model import CheckpointEntry

SCHEMA = "detaudit.trainsect.checkpoint/1"
FOLDER = "checkpoints"
PARAMETERS = ("*.param.*",)


@dataclass(frozen=True)
class Encoded:
    """A state in memory: its tree, its tensors (their own memory where it was copied), its leaves."""

    node: Any
    tensors: list[torch.Tensor]
    leaves: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """Over every leaf but gradients: whether a loop clears them before or behind its forward is no state."""
        return leaf_room.sha256_of({name: text for name, text in self.leaves.items() if not is_gradient(name)})

    @property
    def parameters(self) -> str:
        return leaf_room.sha256_of(self.leaves, *PARAMETERS)

    def decode(self) -> Any:
        """A state whose memory is its own."""
        return Decoder([owned(tensor, copy=True) for tensor in self.tensors]).decode(self.node)


def is_gradient(leaf: str) -> bool:
    """Whether a leaf is a gradient of a module, the residue of an accumulation."""
    return ".grad." in leaf or leaf.endswith(".grad")


def encode(state: Mapping[str, Any], copy: bool) -> Encoded:
    """Encode a state. Raises UsageError naming the path of what has no exact form."""
    encoder = Encoder(copy)
    node = encoder.encode(dict(state), "state")
    return Encoded(node, encoder.tensors, leaf_room.leaves(node, encoder.tensors))


def path_of(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:08d}.pt"


def write(run: Path, step: int, state: Encoded, extra: Mapping[str, Any] | None = None) -> CheckpointEntry:
    """Write the checkpoint of a step. Raises OSError on a full disk, leaving earlier ones whole."""
    path = path_of(run, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema": SCHEMA, "step": step, "tree": dumps(state.node), "tensors": state.tensors}

    def save(file: Path) -> None:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch tells a failed write so
            raise OSError(28, f"the checkpoint could not be written: {str(error).splitlines()[0]}") from error

    _atomic(path, save)
    entry = CheckpointEntry(step, path, sha256_file(path), state.sha256, state.parameters)
    value = {
        "schema": SCHEMA,
        "step": step,
        "file": path.name,
        "sha256": entry.file_sha256,
        "state": entry.state_sha256,
        "parameters": entry.parameters_sha256,
        "leaves": dict(state.leaves),
        **(extra or {}),
    }
    _atomic(path.with_suffix(".json"), lambda file: file.write_text(json.dumps(value, indent=1) + "\n", "utf-8"))
    return entry


def _atomic(path: Path, save: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        save(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sidecar(path: Path) -> dict[str, Any]:
    """The sidecar of a checkpoint. Raises UnreadableError when it is missing or no such thing."""
    try:
        value = json.loads(path.with_suffix(".json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path.with_suffix('.json')} cannot be read: {error}") from error
    keys = ("step", "sha256", "state", "parameters", "leaves")
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or any(key not in value for key in keys):
        raise UnreadableError(f"{path.with_suffix('.json')} does not describe a checkpoint of schema {SCHEMA}")
    return value


def read(entry: CheckpointEntry) -> Encoded:
    """Read a checkpoint and hold it to what was recorded of it.

    Raises InconclusiveError when its bytes have changed and UnreadableError when it is missing or no checkpoint of
    ours; a file that would run code on loading is refused by torch, and by its SHA-256 before."""
    if not entry.path.is_file():
        raise UnreadableError(f"{entry.path}: the checkpoint of step {entry.step} is missing")
    found = sha256_file(entry.path)
    if found != entry.file_sha256:
        raise InconclusiveError(
            f"{entry.path}: the checkpoint of step {entry.step} has changed since it was recorded: "
            f"expected sha256 {entry.file_sha256}, found {found}"
        )
    content = load(entry.path)
    if content["step"] != entry.step:
        raise InconclusiveError(f"{entry.path} holds step {content['step']}, recorded as step {entry.step}")
    node = json.loads(content["tree"])
    state = Encoded(node, content["tensors"], leaf_room.leaves(node, content["tensors"]))
    if state.sha256 != entry.state_sha256:
        raise InconclusiveError(f"{entry.path}: its state has sha256 {state.sha256}, recorded was {entry.state_sha256}")
    return state


def load(path: Path) -> dict[str, Any]:
    """The content of a checkpoint file, without any check against a record. Raises UnreadableError."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise UnreadableError(f"{path} is not a checkpoint that can be read without running code: {text[0]}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or not isinstance(content.get("tree"), str):
        raise UnreadableError(f"{path} is not a checkpoint of schema {SCHEMA}; it was written by another program")
    return content
