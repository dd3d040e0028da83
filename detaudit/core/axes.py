"""The axes of the toggle experiments: what is changed in a repeated pair, one thing at a time.

An axis is a name and the variables it puts into the command's environment; what it changes inside the process is in
`capture/toggle.py`. DETAUDIT_TOGGLE carries the name, and the manifest of a toggled run holds it, so that such a run is
never taken for a plain one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Axis:
    """One axis. `varies` completes "the pair was repeated ...". A `directed` axis is expected to take a divergence of
    its kind away; one that is not only moves timing, which hides some races and provokes others, so only its rate
    beside the plain one says anything."""

    name: str
    varies: str
    variables: Mapping[str, str] = field(default_factory=dict)
    directed: bool = True


_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Without it cuBLAS refuses to run under the deterministic flag, and the experiment would only show an exception.
_WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("threads-1", "on one intra-op thread", dict.fromkeys(_ONE_THREAD, "1")),
        Axis("deterministic", "with deterministic algorithms, memory fill off", _WORKSPACE),
        Axis("deterministic-fill", "with deterministic algorithms, memory fill on", _WORKSPACE),
        Axis("hash-seed", "with PYTHONHASHSEED=0", {"PYTHONHASHSEED": "0"}),
        Axis("workers-0", "with every DataLoader in the training process"),
        Axis("entropy", "with fixed entropy for every generator that asks the system for a seed"),
        Axis("compile-off", "without torch.compile", {"TORCH_COMPILE_DISABLE": "1"}),
        Axis("wait-active", "with OpenMP threads that spin", {"OMP_WAIT_POLICY": "ACTIVE"}, directed=False),
        Axis("wait-passive", "with OpenMP threads that sleep", {"OMP_WAIT_POLICY": "PASSIVE"}, directed=False),
        Axis("load", "beside a busy process on every core", directed=False),
    )
}

PLAIN = "plain"
"""The control: the pair repeated with nothing changed."""
