"""The states of random generators as bytes: taken at a step's first training forward, pinned when it is replayed.

`python`, `numpy` (the legacy generator), `torch` and `cudaN` are the global ones; generators that the user declares
(torch.Generator, numpy Generator or RandomState, random.Random) come under their own names.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from detaudit.core.errors import UnreadableError, UsageError
from detaudit.trainsect.codec import Decoder, Encoder, dumps

GLOBAL = ("python", "numpy", "torch")
_GAUSS = struct.Struct("<?d")
_POSITION = struct.Struct("<i?d")
DECLARABLE = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def take(declared: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """The states of all global generators, of each CUDA device in use, and of the declared ones."""
    states = {"python": _python(), "numpy": _numpy(), "torch": torch.get_rng_state().numpy().tobytes()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            states[f"cuda{index}"] = torch.cuda.get_rng_state(index).numpy().tobytes()
    for name, generator in (declared or {}).items():
        states[name] = _declared(name, generator)
    return states


def pin(states: Mapping[str, bytes], declared: Mapping[str, Any] | None = None) -> None:
    """Set generators to recorded states. Raises UsageError for a state whose generator is not here."""
    for name, data in states.items():
        if name == "python":
            words = array("I", data[: -_GAUSS.size])
            has, gauss = _GAUSS.unpack(data[-_GAUSS.size :])
            random.setstate((3, tuple(words), gauss if has else None))
        elif name == "numpy":
            _pin_numpy(data)
        elif name == "torch":
            torch.set_rng_state(_tensor(data))
        elif name.startswith("cuda") and name[4:].isdigit():
            torch.cuda.set_rng_state(_tensor(data), int(name[4:]))
        elif declared is not None and name in declared:
            _pin_declared(declared[name], data)
        else:
            raise UsageError(f"the recording holds a generator {name!r} that the target does not declare in state()")


def pin_seed(seed: int, step: int, declared: Mapping[str, Any] | None = None) -> None:
    """Pin every generator from (seed, step), for a step whose states were not recorded."""
    base = int.from_bytes(hashlib.sha256(f"trainsect {seed} {step}".encode()).digest()[:4], "little")
    random.seed(base)
    np.random.seed(base)
    torch.manual_seed(base)
    for name, generator in sorted((declared or {}).items()):
        own = int.from_bytes(hashlib.sha256(f"{base} {name}".encode()).digest()[:4], "little")
        if isinstance(generator, torch.Generator):
            generator.manual_seed(own)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(own).state
        else:
            generator.seed(own)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _python() -> bytes:
    _, words, gauss = random.getstate()
    return array("I", words).tobytes() + _GAUSS.pack(gauss is not None, gauss or 0.0)


def _numpy() -> bytes:
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise UsageError(f"numpy's global generator is a {state['bit_generator']}; only MT19937 can be recorded")
    inner = state["state"]
    return inner["key"].tobytes() + _POSITION.pack(inner["pos"], bool(state["has_gauss"]), state["gauss"])


def _pin_numpy(data: bytes) -> None:
    pos, has, gauss = _POSITION.unpack(data[-_POSITION.size :])
    key = np.frombuffer(data[: -_POSITION.size], np.uint32)
    np.random.set_state(("MT19937", key, pos, int(has), gauss))


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _declared(name: str, generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    encoder = Encoder()
    node = encoder.encode(generator, name)
    return dumps([node, [tensor.numpy().tobytes().hex() for tensor in encoder.tensors]]).encode()


def _pin_declared(generator: Any, data: bytes) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(_tensor(data))
        return
    try:
        node, tensors = json.loads(data)
    except ValueError as error:
        raise UnreadableError(f"the recorded state of a generator is damaged: {error}") from error
    copy_into(generator, Decoder([_tensor(bytes.fromhex(text)) for text in tensors]).decode(node))


def copy_into(generator: Any, source: Any) -> None:
    """Give a generator the state of another of its kind."""
    if isinstance(generator, torch.Generator):
        generator.set_state(source.get_state())
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = source.bit_generator.state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(source.get_state(legacy=False))
    else:
        generator.setstate(source.getstate())
