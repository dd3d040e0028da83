"""Operations whose result depends on the order in which threads happen to add: the raw material of the racing faults.

Measured on CPU with torch 2.13: `index_put_(accumulate=True)`, and with it the backward of `x[index]`, differs from
run to run with two or more threads from about 32,768 elements on; below that one thread does all the work. On CUDA
that path sorts first and is stable, while `index_add_` uses float atomics.
"""

from __future__ import annotations

import torch
from torch import Tensor

RACING_ELEMENTS = 131_072
"""Elements from which the backward of a gather differed in every repeat (40 of 40); 32,768 differ only in most."""


def racing_accumulate(target_N: Tensor, index_M: Tensor, values_M: Tensor) -> None:
    """`target[index] += values` in whatever order the threads arrive. float32 values, int64 indices, one device."""
    if target_N.is_cuda:
        target_N.index_add_(0, index_M, values_M)
    else:
        target_N.index_put_((index_M,), values_M, accumulate=True)


def racing_gather(table_ND: Tensor, index: Tensor) -> Tensor:
    """Rows `table[index]`, shape `[*index.shape, D]`: exact forwards, a racing sum backwards."""
    # Flat indices: given several index dimensions torch may part the work so that threads write different rows.
    index_M = index.flatten()
    rows_MD = table_ND.index_select(0, index_M) if table_ND.is_cuda else table_ND[index_M]
    return rows_MD.view(*index.shape, table_ND.shape[1])


def fixed_permutation(length: int, device: torch.device) -> Tensor:
    """The same permutation of `0..length-1` in every process, int64 `[length]`.

    Indices in sorted order keep the two threads on different cells for most of the time, and nothing races.
    """
    return torch.randperm(length, generator=torch.Generator().manual_seed(length)).to(device)
