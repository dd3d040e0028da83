"""Stats on the device, by `kernels/leaf_stats.cu`: the bits of `stats.tensor_stats` for every dtype it can read.

A dtype without a reading here (`float4_e2m1fn_x2`) or a sparse tensor raises UnsupportedLeafError or goes to the host
as `stats.leaf_stats` does; complex32 to complex128 count as twice as many real elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from detaudit.core.errors import UnsupportedLeafError
from detaudit.core.model import Stats
from detaudit.digest.device import CAPTURING
from detaudit.digest.host import dtype_name
from detaudit.digest.launcher import Launcher
from detaudit.digest.portable import flat_bytes
from detaudit.digest.stats import SEGMENT

SOURCE, BLOCK, COLUMNS = "leaf_stats", 256, 6
ROW = np.dtype(
    [
        ("address", "<u8"),
        ("count", "<u8"),
        ("first_segment", "<u8"),
        ("size", "<u4"),
        ("kind", "<u4"),
        ("exponent", "<u4"),
        ("mantissa", "<u4"),
        ("bias", "<u4"),
        ("special", "<u4"),
    ]
)
"""The struct Row of the kernel."""

UNSIGNED, SIGNED, BOOL, FLOAT = range(4)
READINGS: dict[str, tuple[int, int, int, int, int, int]] = {
    "bool": (1, BOOL, 0, 0, 0, 0),
    **{f"uint{8 * size}": (size, UNSIGNED, 0, 0, 0, 0) for size in (1, 2, 4, 8)},
    **{f"int{8 * size}": (size, SIGNED, 0, 0, 0, 0) for size in (1, 2, 4, 8)},
    "float16": (2, FLOAT, 5, 10, 15, 0),
    "bfloat16": (2, FLOAT, 8, 7, 127, 0),
    "float32": (4, FLOAT, 8, 23, 127, 0),
    "float64": (8, FLOAT, 11, 52, 1023, 0),
    "complex32": (2, FLOAT, 5, 10, 15, 0),
    "complex64": (4, FLOAT, 8, 23, 127, 0),
    "complex128": (8, FLOAT, 11, 52, 1023, 0),
    "float8_e4m3fn": (1, FLOAT, 4, 3, 7, 1),
    "float8_e5m2": (1, FLOAT, 5, 2, 15, 0),
    "float8_e4m3fnuz": (1, FLOAT, 4, 3, 8, 2),
    "float8_e5m2fnuz": (1, FLOAT, 5, 2, 16, 2),
    "float8_e8m0fnu": (1, FLOAT, 8, 0, 127, 3),
}
"""dtype -> (bytes of a real element, kind, exponent bits, mantissa bits, bias, special), as in the kernel."""


def device_stats(tensors: Sequence[torch.Tensor], device: torch.device, launcher: Launcher) -> list[Stats]:
    """The stats of dense tensors of one device, in one pair of launches and one copy to the host.

    Raises UnsupportedLeafError for a dtype without a reading, memory that is not there, or a graph being captured.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UnsupportedLeafError(CAPTURING)
    if not tensors:
        return []
    flats = [flat_bytes(tensor) for tensor in tensors]
    rows, segments = stats_plan(tensors, [flat.data_ptr() for flat in flats])
    table = torch.from_numpy(rows.view(np.int64))
    on_gpu = device.type == "cuda"
    held = (table.pin_memory() if on_gpu else table).to(device, non_blocking=on_gpu)
    partials = torch.empty(max(segments, 1) * COLUMNS, dtype=torch.int64, device=device)
    results = torch.empty(len(tensors) * COLUMNS, dtype=torch.int64, device=device)
    first, between, last = (np.uint64(part.data_ptr()) for part in (held, partials, results))
    if segments:
        launcher.launch(SOURCE, "stats_segments", segments, BLOCK, (first, np.uint32(len(tensors)), between))
    launcher.launch(SOURCE, "stats_leaves", len(tensors), BLOCK, (first, between, last))
    # A blocking copy: until it is done, `flats`, `held` and `partials` are alive.
    return [_stats(row) for row in results.cpu().numpy().reshape(-1, COLUMNS)]


def stats_plan(tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> tuple[np.ndarray, int]:
    """The kernel's table of leaves, and the number of segments of all leaves."""
    rows = np.zeros(len(tensors), ROW)
    segment = 0
    for index, (tensor, address) in enumerate(zip(tensors, addresses, strict=True)):
        reading = READINGS.get(dtype_name(tensor.dtype))
        if reading is None:
            raise UnsupportedLeafError(f"dtype {dtype_name(tensor.dtype)} has no exact float64 reading")
        count = tensor.nbytes // reading[0]
        rows[index] = (address, count, segment, *reading)
        segment += -(-count // SEGMENT)
    return rows, segment


def _stats(row: np.ndarray) -> Stats:
    sumsq, _, low, high, _, _ = row.view(np.float64).tolist()
    _, bag, _, _, nans, infs = row.view(np.uint64).tolist()
    return Stats(bag, sumsq, low, high, nans, infs)
