"""Where a spike comes from: the data, the weights, or the hardware. Unproven is a normal answer.

The reasoning rests on two facts. Within one optimizer step all micro-batches see the same weights, and data-parallel
ranks see the same weights as each other: so a spike of one rank or one micro-step does not come from the weights, and
one that begins on all ranks with the first micro-step and stays does not come from the data of one of them. Data and
hardware of one rank are told apart by replaying the same rows, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

DATA, WEIGHTS, HARDWARE, UNPROVEN = "data-borne", "weight-borne", "hardware-borne", "unproven"

Replay = Callable[[Mapping[str, Any]], bool | None]
"""Replays the micro-batch of a coordinate: True if it spikes again, False if not, None if the run is not recorded."""


def origin_of(
    root: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], replay: Replay | None = None
) -> dict[str, Any]:
    """Verdict, candidates and evidence for the root group, from all groups of phase 1."""
    step, micro = root["position"]
    blamed = root["rank"]
    evidence: list[str] = []
    if root["ranks_seen"] == 1:
        evidence.append("only one rank was recorded: nothing says whether the others share it")
        return _verdict(UNPROVEN, [DATA, HARDWARE, WEIGHTS], evidence, "grad_unreduced of the other ranks")
    if blamed is not None:
        evidence.append(
            f"rank {blamed} alone of {root['ranks_seen']} recorded: the weights are shared, so not from them"
        )
        later = [g for g in groups if g["position"][0] > step and g["rank"] == blamed]
        if later:
            evidence.append(f"the same rank alone is abnormal in {len(later)} later micro-step(s)")
        return _one_rank(root, evidence, replay)
    if root["scope"] != "all ranks":
        evidence.append(f"ranks: {root['scope']}")
        return _verdict(UNPROVEN, [DATA, HARDWARE, WEIGHTS], evidence, "grad_unreduced of every rank")
    if from_changed_weights(root):
        evidence.append("all ranks are abnormal through the whole step: changed weights")
        if any(g["position"][0] == step - 1 for g in groups):
            evidence.append("the step before holds an abnormal gradient that went into them")
            return _verdict(WEIGHTS, [WEIGHTS], evidence, "")
        evidence.append("no abnormal gradient was seen in the step before")
        return _verdict(WEIGHTS, [WEIGHTS], evidence, "optimizer state and learning rate of the step before")
    if root["micro_step"] is not None:
        part = "earlier" if micro else "later"
        evidence.append(
            f"all ranks at once, but the {part} micro-steps of that step are not: same weights, so not from them"
        )
        return _verdict(UNPROVEN, [DATA, HARDWARE], evidence, "the rows of that micro-batch, and the collectives")
    evidence.append("all ranks at once, one micro-step a step")
    return _verdict(UNPROVEN, [DATA, WEIGHTS], evidence, "replay of that step from the weights before it")


def _one_rank(root: Mapping[str, Any], evidence: list[str], replay: Replay | None) -> dict[str, Any]:
    outcome = replay(root["lead"]) if replay else None
    if outcome is None:
        return _verdict(UNPROVEN, [DATA, HARDWARE], evidence, "replay of the same rows on another device")
    if outcome:
        return _verdict(DATA, [DATA], [*evidence, "the same rows spike again when replayed"], "")
    return _verdict(HARDWARE, [HARDWARE], [*evidence, "the same rows do not spike when replayed"], "")


def from_changed_weights(group: Mapping[str, Any]) -> bool:
    """Whether all ranks are abnormal through the whole step."""
    return group["scope"] == "all ranks" and bool(group["whole_window"])


def may_be_from_weights(group: Mapping[str, Any]) -> bool:
    """The same, or several ranks in a step of a single micro-step, where nothing tells data and weights apart."""
    several = group["scope"] in ("all ranks", "some ranks")
    return from_changed_weights(group) or (several and group["micro_step"] is None)


def _verdict(verdict: str, candidates: list[str], evidence: list[str], decided_by: str) -> dict[str, Any]:
    return {"verdict": verdict, "candidates": candidates, "evidence": evidence, "would_decide": decided_by}
