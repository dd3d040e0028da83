"""The states of the random generators as leaves. Torch and CUDA generators always decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from detaudit.capture.host_generators import HostGenerator
from detaudit.digest.host import tensor_digest
from detaudit.digest.select import LeafDigest
from detaudit.digest.spec import digest_bytes
from detaudit.digest.values import digest_value

NOT_SEEDED = "not seeded by the program"
"""Stands for the state of a python or numpy generator until the program seeds it, used or not: equal on both sides."""


def generator_leaves(generators: Sequence[HostGenerator]) -> Iterator[tuple[str, LeafDigest]]:
    """All global generators as (leaf name, digest): python's and numpy's, torch's CPU generator with its whole state
    of 5,056 bytes, seed and offset for each CUDA device in use."""
    for generator in generators:
        yield f"rng.{generator.name}", _host_leaf(generator)
    yield "rng.torch", generator_digest(torch.default_generator)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index, device in enumerate(torch.cuda.default_generators):
            position = (device.initial_seed(), device.get_offset())
            yield f"rng.cuda{index}", LeafDigest(digest_value(position), "value", ())


def _host_leaf(generator: HostGenerator) -> LeafDigest:
    state = generator.state()
    if state is None:
        return LeafDigest(digest_value(NOT_SEEDED), "value", ())
    return LeafDigest(digest_bytes("uint8", (len(state),), state), "value", ())


def generator_digest(generator: torch.Generator) -> LeafDigest:
    """The digest of a torch.Generator's whole state."""
    state = generator.get_state()
    return LeafDigest(tensor_digest(state), "uint8", tuple(state.shape))
