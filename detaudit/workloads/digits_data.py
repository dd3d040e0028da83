"""scikit-learn's handwritten digits as a dataset with named classes and a random shift, and its loaders.

1,797 real images of 8 x 8 pixels in 17 grey levels (UCI, "Optical Recognition of Handwritten Digits").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from detaudit.core.errors import UsageError

SIDE = 8
LEVELS = 17
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HELD_OUT = 360
WORKERS = 2

Shift = Callable[[], tuple[int, int]]


def load_images() -> tuple[Tensor, list[str]]:
    """All images, int64 grey levels `[1797, 8, 8]`, and the name of each one's class."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        cure = "pip install 'detaudit[workloads]'"
        raise UsageError(f"digits needs scikit-learn ({error}); install it with: {cure}") from None
    bunch = load_digits()
    return torch.from_numpy(bunch.images.astype(np.int64)), [NAMES[target] for target in bunch.target]


def numbered(names: Iterable[str]) -> dict[str, int]:
    """A number for every distinct class name, in the order they come."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def seeded_shift() -> tuple[int, int]:
    """A shift of -1, 0 or 1 rows and columns from torch's generator, which a loader seeds in its workers."""
    rows, columns = torch.randint(-1, 2, (2,)).tolist()
    return rows, columns


def unseeded_shift() -> tuple[int, int]:
    """The same shift from a numpy generator that nobody seeded (fault `numpy-augment`)."""
    rows, columns = np.random.default_rng().integers(-1, 2, 2).tolist()
    return rows, columns


def no_shift() -> tuple[int, int]:
    return 0, 0


class Digits(Dataset[tuple[Tensor, int]]):
    """Item i: grey levels int64 `[8, 8]`, shifted with empty pixels moving in, and the number of its class."""

    def __init__(self, images: Tensor, labels: list[int], shift: Shift) -> None:
        self._images, self._labels, self._shift = images, labels, shift

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rows, columns = self._shift()
        padded = torch.nn.functional.pad(self._images[index], (1, 1, 1, 1))
        image = padded[1 + rows : 1 + rows + SIDE, 1 + columns : 1 + columns + SIDE]
        return image.clone(), self._labels[index]


def training_loader(data: Digits, batch: int, generator: torch.Generator) -> DataLoader[tuple[Tensor, int]]:
    """Shuffled whole batches from worker processes; order and worker seeds come from `generator`."""
    workers = min(WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else WORKERS)
    return DataLoader(data, batch, shuffle=True, drop_last=True, num_workers=workers, generator=generator)


def evaluation_loader(data: Digits, generator: torch.Generator | None) -> DataLoader[tuple[Tensor, int]]:
    """All items in order. Every iteration draws a seed: from `generator`, or from torch's global one without it."""
    return DataLoader(data, 120, generator=generator)
