"""Abnormal cells of one micro-step taken together: which ranks, which target leads, and whether one rank is to
blame."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detaudit.spike.anomalies import DROP, SHARED, Anomalies
from detaudit.spike.cube import MetricCube
from detaudit.spike.deviation import peer_distance
from detaudit.spike.order_statistics import median_of
from detaudit.spike.windows import CUMULATIVE

ONE_RANK, SOME_RANKS, ALL_RANKS, UNKNOWN_RANK = "one rank", "some ranks", "all ranks", "not told apart"
NOISE_WIDTHS = 3.0


@dataclass(frozen=True)
class Group:
    """The abnormal cells of one (optimizer step, micro-step).

    `lead` is the index (into Anomalies) of the cell that stands for the group: of the leading rank, among targets that
    the noise cannot tell from its largest deviation, the first in backward order. `rank` is the blamed rank, None
    when the ranks cannot be told apart. `first_target` is the first abnormal target in backward order.
    """

    step: int
    micro: int
    cells: npt.NDArray[np.int64]
    lead: int
    rank: int | None
    scope: str
    ranks: tuple[tuple[int, float, int], ...]
    """(rank position, largest log distance, abnormal targets), by falling distance."""
    ranks_seen: int
    targets: int
    targets_seen: int
    first_target: int
    whole_window: bool
    """The other micro-steps of the step are as large in proportion: what changed weights do, and one bad micro-batch
    does not. Always False for a window of one."""


def groups_of(cube: MetricCube, found: Anomalies, blame_ranks: bool, limit: int, mode: str = "") -> list[Group]:
    """The first `limit` groups in time. `blame_ranks` is False where all ranks hold one reduced gradient; `mode` says
    whether norms accumulate."""
    if not len(found):
        return []
    code = found.step * (cube.micro_steps + 1) + found.micro
    bounds = [0, *(np.flatnonzero(np.diff(code)) + 1).tolist(), len(code)]
    return [
        _group(cube, found, np.arange(first, last), blame_ranks, mode)
        for first, last in list(itertools.pairwise(bounds))[:limit]
    ]


def _group(cube: MetricCube, found: Anomalies, cells: npt.NDArray[np.int64], blame_ranks: bool, mode: str) -> Group:
    step, micro = int(found.step[cells[0]]), int(found.micro[cells[0]])
    seen = cube.present[:, :, step, micro]
    # A rise or a broken number outranks a drop: where one part of a batch explodes, another may well shrink.
    rising = cells[found.trigger[cells] != DROP]
    pool = rising if len(rising) else cells
    distance = np.abs(found.distance[pool])
    by_rank: list[tuple[int, float, int]] = []
    for rank in np.unique(found.rank[pool]):
        own = found.rank[pool] == rank
        by_rank.append((int(rank), float(distance[own].max()), int(own.sum())))
    by_rank.sort(key=lambda item: (-item[1], -item[2], item[0]))
    leader = by_rank[0][0]
    own = pool[found.rank[pool] == leader]
    lead = _lead(found, own)
    return Group(
        step=step,
        micro=micro,
        cells=cells,
        lead=lead,
        rank=leader if (scope := _scope(cube, found, lead, by_rank, seen, blame_ranks)) == ONE_RANK else None,
        scope=scope,
        ranks=tuple(by_rank),
        ranks_seen=int(seen.any(axis=1).sum()),
        targets=len(np.unique(found.target[pool])),
        targets_seen=int(seen.any(axis=0).sum()),
        first_target=int(found.target[own].min()),
        whole_window=_whole_window(cube, found, pool, mode, micro),
    )


def _whole_window(cube: MetricCube, found: Anomalies, cells: npt.NDArray[np.int64], mode: str, micro: int) -> bool:
    """Whether the other micro-steps of the step share the deviation, over the cells of a group, abnormal or not.

    An accumulated sum that merely carries one huge first gradient hardly grows any more; a whole window scaled up grows
    like any other window.
    """
    if cube.micro_steps < 2:
        return False
    rank, target, step = found.rank[cells], found.target[cells], found.step[cells]
    if mode == CUMULATIVE:
        if micro:
            return False
        with np.errstate(divide="ignore", invalid="ignore"):
            series = cube.values[:, np.unique(target)]
            growth = np.log(series[..., -1] / series[..., 0])
            own = np.log(cube.values[rank, target, step, -1] / cube.values[rank, target, step, 0])
        usual = median_of(np.where(np.isfinite(growth), growth, np.nan))
        here = median_of(np.where(np.isfinite(own), own, np.nan))
        return bool(usual > 0 and here > usual / 2)
    beside = np.delete(found.logs[rank, target, step], micro, axis=1) - np.log(found.reference[cells])[:, None]
    return bool(median_of(beside) > SHARED * median_of(found.distance[cells]))


def _lead(found: Anomalies, own: npt.NDArray[np.int64]) -> int:
    distance = np.abs(found.distance[own])
    if np.isinf(distance.max()):
        close = np.isinf(distance)
    else:
        close = distance > distance.max() - _noise(found, own)
    candidates = own[close]
    return int(candidates[np.argmin(found.target[candidates])])


def _noise(found: Anomalies, cells: npt.NDArray[np.int64]) -> float:
    """The difference of two log distances that noise alone can make."""
    if found.scale is None:
        return 0.0
    sigma = found.scale.sigma[found.target[cells], found.micro[cells]]
    return float(NOISE_WIDTHS * math.sqrt(2) * np.max(sigma))


def _scope(
    cube: MetricCube,
    found: Anomalies,
    lead: int,
    by_rank: list[tuple[int, float, int]],
    seen: npt.NDArray[np.bool_],
    blame_ranks: bool,
) -> str:
    if not blame_ranks:
        return UNKNOWN_RANK
    observed = int(seen.any(axis=1).sum())
    top = by_rank[0][1]
    if observed == 1:
        return ONE_RANK
    if len(by_rank) > 1:
        second = by_rank[1][1]
        noise = _noise(found, np.array([lead]))
        if math.isinf(second) or top - second < max(noise, math.log(2)):
            return ALL_RANKS if len(by_rank) > 0.8 * observed else SOME_RANKS
        if math.isinf(top) or top - second > max(noise, math.log(4)):
            return ONE_RANK
    if math.isinf(top):
        return ONE_RANK
    where = (int(found.rank[lead]), int(found.target[lead]), int(found.step[lead]), int(found.micro[lead]))
    peers = peer_distance(found.logs, *where)
    shared = not math.isnan(peers) and peers > SHARED * abs(float(found.distance[lead]))
    return ALL_RANKS if shared else ONE_RANK
