"""The rules of phases 1 and 2 as the seed words them, given the true window: the yardstick of the ground-truth table.

Phase 1, micro-steps: the three largest final norms of every optimizer step are suspects; deltas max(0, n_i -
n_{i-1}); with at least three deltas and two positive ones, abnormal above max(10 * median, 0.01) for fewer than eight
positive deltas, else above q3 + 5 * IQR. Phase 1, steps: above q3 + 5 * IQR or median + 10 * MAD, all ranks of a
target pooled. Phase 2: if at least 60 % of the ranks' final norm of the step's own top target grows twofold between
neighbours, the root is the earlier step, else the step of the largest deviation; inside it the largest delta or norm.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import spike_runs
from spike_runs import CLEAN, Spec, Truth

Anomaly = tuple[int, int, int, int, float, float]
"""(step, rank, micro-step, parameter, deviation, size)."""


def anomalies(spec: Spec) -> list[Anomaly]:
    n, _ = spike_runs.norms(spec)
    ranks = [r for r in range(spec.ranks) if r not in spec.missing]
    n = np.where(np.isnan(n), np.nan, np.minimum(n, 1e9))
    found: list[Anomaly] = []
    if spec.window == 1:
        for p in range(n.shape[1]):
            values = np.sort(n[ranks, p].ravel())
            values = values[~np.isnan(values)]
            if len(values) < 3:
                continue
            median = values[len(values) // 2]
            q1, q3 = values[len(values) // 4], values[3 * len(values) // 4]
            mad = np.sort(np.abs(values - median))[len(values) // 2]
            for r in ranks:
                for s in range(spec.steps):
                    x = n[r, p, s, 0]
                    if x > q3 + 5 * (q3 - q1) or x > median + 10 * mad:
                        found.append((s, r, 0, p, float(x / median), float(x)))
        return found
    for s in range(spec.steps):
        finals = [(n[r, p, s, -1], r, p) for r in ranks for p in range(n.shape[1]) if not math.isnan(n[r, p, s, -1])]
        for _, r, p in sorted(finals, reverse=True)[:3]:
            series = n[r, p, s]
            deltas = np.concatenate([series[:1], np.maximum(0, np.diff(series))])
            positive = deltas[deltas > 0]
            if len(deltas) < 3 or len(positive) < 2:
                continue
            median = float(np.median(positive))
            if len(positive) < 8:
                bar = max(10 * median, 0.01)
            else:
                q1, q3 = np.percentile(positive, [25, 75])
                bar = q3 + 5 * (q3 - q1)
            for k in np.flatnonzero(deltas > bar):
                found.append((s, r, int(k), p, float(deltas[k] / median), float(deltas[k])))
    return found


def root(spec: Spec) -> Anomaly | None:
    found = anomalies(spec)
    if not found:
        return None
    n, _ = spike_runs.norms(spec)
    ranks = [r for r in range(spec.ranks) if r not in spec.missing]
    step = max(found, key=lambda a: a[4])[0]
    if spec.window > 1:
        listed = sorted({a[0] for a in found})
        top = {s: max((a for a in found if a[0] == s), key=lambda a: n[a[1], a[3], s, -1])[3] for s in listed}
        for before, after in itertools.pairwise(listed):
            grown = [n[r, top[after], after, -1] >= 2 * n[r, top[before], before, -1] for r in ranks]
            if len(ranks) >= 3 and np.mean(grown) >= 0.6:
                step = before
                break
    return max((a for a in found if a[0] == step), key=lambda a: a[5])


def score(spec: Spec, truth: Truth) -> str:
    answer = root(spec)
    if truth.label == CLEAN:
        return "false alarm" if answer else "quiet"
    if answer is None:
        return "insufficient"
    step, rank, micro, target, *_ = answer
    right = step == truth.step and (spec.window == 1 or micro == truth.micro) and spec.names[target] == truth.target
    # A spike of all ranks has no rank to blame: any is accepted here.
    return "exact" if right and truth.rank in (None, rank) else "wrong"
