"""Generates dumps A, B, C and D of one model step with a known first divergence.

A and B see the same abnormal sample, C and D another, normal one; A and C run on one device, B and D on the other. Each
entry has a device bias 1 + N(0, 0.01), shared by A/B and C/D, and a rounding of its statistics to bf16. An effect
multiplies A alone, from its layer onwards in the direction of the pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SIDES = ("A", "B", "C", "D")
METRICS = ("Max", "Min", "Mean", "Norm")
SUBMODULES = (
    ("input_layernorm", "RMSNorm", ("Functional.rms_norm",)),
    ("self_attention.linear_qkv", "TEColumnParallelLinear", ("Functional.linear",)),
    ("self_attention.core_attention", "FlashAttention", ("Torch.matmul", "Torch.softmax")),
    ("self_attention.linear_proj", "TERowParallelLinear", ("Functional.linear",)),
    ("self_attention", "SelfAttention", ()),
    ("mlp.linear_fc1", "TEColumnParallelLinear", ("Functional.linear",)),
    ("mlp.linear_fc2", "TERowParallelLinear", ("Functional.linear",)),
    ("mlp", "MLP", ()),
    ("", "TransformerLayer", ()),
)
NORMS = ("input_layernorm", "self_attention", "mlp")


@dataclass(frozen=True)
class Effect:
    """A's deviation: `factor` for the layers in `layers` (each further one times `growth`), in one direction, on the
    named metrics. `inside` restricts it to submodules that begin with this name; `flip` changes the sign of Min and
    Mean."""

    direction: str = "forward"
    layers: tuple[int, ...] = ()
    factor: float = 1.5
    growth: float = 1.0
    metrics: tuple[str, ...] = METRICS
    inside: str = ""
    flip: bool = False


@dataclass(frozen=True)
class DumpSpec:
    """One generated set. `plain` sides are written without Transformer Engine and flash names; `drop` and `resize`
    name (side, substring of key) to leave out or to give another element count; `nan` and `null` likewise for
    statistics. `device` fixes the device bias apart from the seed."""

    seed: int = 0
    layers: int = 8
    calls: int = 1
    effects: tuple[Effect, ...] = ()
    bias: float = 0.01
    grain: bool = True
    plain: tuple[str, ...] = ("B", "D")
    drop: tuple[tuple[str, str], ...] = ()
    resize: tuple[tuple[str, str], ...] = ()
    nan: tuple[tuple[str, str], ...] = ()
    null: tuple[tuple[str, str], ...] = ()
    recompute: bool = False
    prefix: str = "module.module."
    mindspore: tuple[str, ...] = ()
    micro_batch: tuple[int, ...] = (4, 16)
    gradient: float = 1.0
    sides: tuple[str, ...] = SIDES
    effect_call: int | None = None
    device: int | None = None


@dataclass
class _Writer:
    spec: DumpSpec
    side: str
    rng: np.random.Generator
    data: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    stacks: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def shared(self, *labels: object) -> np.random.Generator:
        """A generator fixed by the labels and the seed: what sides share."""
        return np.random.default_rng([self.spec.seed, *(abs(hash_text(str(label))) for label in labels)])

    def stats(self, name: str, direction: str, layer: int | None, sub: str, call: int) -> dict[str, Any]:
        sample = "AB" if self.side in "AB" else "CD"
        device = "AC" if self.side in "AC" else "BD"
        elements = self.spec.micro_batch[0] * self.spec.micro_batch[1] * 64
        base = self.shared("base", name, direction, sample, call)
        rms = math.exp(base.normal(0, 0.4))
        values = {
            "Max": rms * base.uniform(3, 5),
            "Min": -rms * base.uniform(3, 5),
            "Mean": rms * base.uniform(0.05, 0.2) * base.choice([-1, 1]),
            "Norm": rms * math.sqrt(elements),
        }
        # One device has one bias, whatever the rank or the sample.
        seed = self.spec.seed if self.spec.device is None else self.spec.device
        draw = np.random.default_rng([seed, hash_text("bias"), hash_text(name), hash_text(direction)])
        bias = 1.0 + draw.normal(0, self.spec.bias) if device == "AC" else 1.0
        result: dict[str, Any] = {}
        for metric, value in values.items():
            value *= bias * self._effect(direction, layer, sub, metric, call)
            result[metric] = bf16(value) if self.spec.grain else value
        return result

    def _effect(self, direction: str, layer: int | None, sub: str, metric: str, call: int) -> float:
        if self.side != "A" or layer is None or self.spec.effect_call not in (None, call):
            return 1.0
        total = 1.0
        for effect in self.spec.effects:
            if effect.direction != direction or layer not in effect.layers or metric not in effect.metrics:
                continue
            if effect.inside and not sub.startswith(effect.inside):
                continue
            steps = effect.layers.index(layer)
            total *= effect.factor * effect.growth**steps
            if effect.flip and metric in ("Min", "Mean"):
                total = -total
        return total

    def tensor(self, key: str, stats: dict[str, Any], shape: Iterable[int]) -> dict[str, Any]:
        dims = list(shape)
        if any(side == self.side and part in key for side, part in self.spec.resize):
            dims = [*dims, 2]
        held = dict(stats)
        if any(side == self.side and part in key for side, part in self.spec.nan):
            held = dict.fromkeys(held, math.nan)
        if any(side == self.side and part in key for side, part in self.spec.null):
            held = dict.fromkeys(held, None)
        kind = "mindspore.Tensor" if self.side in self.spec.mindspore else "torch.Tensor"
        return {"type": kind, "dtype": "torch.bfloat16", "shape": dims, **held}

    def put(self, key: str, entry: dict[str, Any], parent: str | None) -> None:
        if any(side == self.side and part in key for side, part in self.spec.drop):
            return
        self.data[key] = entry
        self.parents[key] = parent

    def module_key(self, path: str, cls: str, direction: str, call: int) -> str:
        if self.side in self.spec.plain:
            cls = cls.replace("TE", "").replace("FlashAttention", "FusedAttention")
        prefix = "Cell" if self.side in self.spec.mindspore else "Module"
        return f"{prefix}.{path}.{cls}.{direction}.{call}"

    def api_key(self, api: str, direction: str) -> str:
        if self.side in self.spec.plain and api == "Functional.rms_norm":
            api = "NPU.npu_rms_norm"
        at = self.counts.get(f"{api}.{direction}", 0)
        self.counts[f"{api}.{direction}"] = at + 1
        return f"{api}.{at}.{direction}"


def hash_text(text: str) -> int:
    """A stable hash: the built-in one changes from process to process."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


def bf16(value: float) -> float:
    """Round to eight significant bits."""
    if value == 0 or not math.isfinite(value):
        return value
    unit = 2.0 ** (math.floor(math.log2(abs(value))) - 7)
    return round(value / unit) * unit


def _forward(w: _Writer, call: int) -> None:
    spec = w.spec
    shape = (*spec.micro_batch, 64)
    tokens = {"type": "torch.Tensor", "dtype": "torch.int64", "shape": list(spec.micro_batch), "Max": 9, "Min": 0}
    _module(w, f"{spec.prefix}embedding", "Embedding", "forward", None, "embedding", call, shape, [tokens])
    for layer in range(spec.layers):
        root = f"{spec.prefix}decoder.layers.{layer}"
        parent = w.module_key(root, "TransformerLayer", "forward", call)
        for sub, cls, apis in SUBMODULES:
            path = f"{root}.{sub}" if sub else root
            key = w.module_key(path, cls, "forward", call)
            for api in apis:
                stats = w.stats(f"{path}:{api}", "forward", layer, sub, call)
                name = w.api_key(api, "forward")
                w.put(name, {"input_args": [], "input_kwargs": {}, "output": [w.tensor(name, stats, shape)]}, key)
                w.stacks[name] = [f"File /home/someone/model/{sub or 'layer'}.py, line {10 + layer}, in forward, \n x"]
            _module(w, path, cls, "forward", layer, sub, call, shape, None, parent if sub else None)
    _module(w, f"{spec.prefix}decoder.final_layernorm", "RMSNorm", "forward", None, "final", call, shape, None)


def _backward(w: _Writer, call: int) -> None:
    spec = w.spec
    shape = (*spec.micro_batch, 64)
    _module(w, f"{spec.prefix}decoder.final_layernorm", "RMSNorm", "backward", None, "final", call, shape, None)
    for layer in reversed(range(spec.layers)):
        root = f"{spec.prefix}decoder.layers.{layer}"
        if spec.recompute:
            key = w.module_key(root, "TransformerLayer", "forward", call + spec.calls)
            stats = w.stats(f"{root}:again", "forward", None, "", call)
            entry = {"input_args": [], "input_kwargs": {}, "output": [w.tensor(key, stats, shape)]}
            w.put(key, entry, w.module_key(root, "TransformerLayer", "backward", call))
        for sub, cls, apis in reversed(SUBMODULES[:-1]):
            path = f"{root}.{sub}"
            key = w.module_key(path, cls, "backward", call)
            for api in reversed(apis):
                stats = w.stats(f"{path}:{api}", "backward", layer, sub, call)
                name = w.api_key(api, "backward")
                w.put(name, {"input": [], "output": [w.tensor(name, stats, shape)]}, key)
            if apis == ("Functional.linear",):
                key_grad = w.module_key(path, cls, "parameters_grad", call)
                grad = w.stats(f"{path}:weight", "backward", layer, sub, call)
                grad["Norm"] = abs(grad["Norm"]) * (spec.gradient if w.side in "AB" else 1.0)
                w.put(key_grad, {"weight": [w.tensor(key_grad, grad, (64, 64))]}, None)
            _module(w, path, cls, "backward", layer, sub, call, shape, None)
        _module(w, root, "TransformerLayer", "backward", layer, "", call, shape, None)
    _module(w, f"{spec.prefix}embedding", "Embedding", "backward", None, "embedding", call, shape, None)


def _module(
    w: _Writer,
    path: str,
    cls: str,
    direction: str,
    layer: int | None,
    sub: str,
    call: int,
    shape: tuple[int, ...],
    inputs: list[Any] | None,
    parent: str | None = None,
) -> None:
    key = w.module_key(path, cls, direction, call)
    stats = w.stats(path, direction, layer, sub, call)
    output = [w.tensor(key, stats, shape)]
    if direction == "backward":
        # The embedding's input is integer: it has no gradient, only that of its output.
        entry = {"input": output, "output": [None] if "embedding" in path else output}
    else:
        entry = {"input_args": inputs or [], "input_kwargs": {}, "output": output}
    w.put(key, entry, parent)


def build(spec: DumpSpec, side: str) -> _Writer:
    """The entries of one side, in execution order."""
    writer = _Writer(spec, side, np.random.default_rng(spec.seed))
    for call in range(spec.calls):
        _forward(writer, call)
        _backward(writer, call)
    return writer


def write_side(spec: DumpSpec, side: str, folder: Path) -> Path:
    """Write one side's dump.json, construct.json and stack.json into `folder`."""
    writer = build(spec, side)
    folder.mkdir(parents=True, exist_ok=True)
    framework = "mindspore" if side in spec.mindspore else "pytorch"
    head = {"task": "statistics", "level": "mix", "framework": framework, "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**head, "data": writer.data}, indent=1))
    (folder / "construct.json").write_text(json.dumps(writer.parents))
    stacks = {str(i): [[name], frames] for i, (name, frames) in enumerate(writer.stacks.items())}
    (folder / "stack.json").write_text(json.dumps(stacks))
    return folder


def write(spec: DumpSpec, root: Path) -> dict[str, Path]:
    """All sides under `root`, each as SIDE/step0/rank0."""
    return {side: write_side(spec, side, root / side / "step0" / "rank0") for side in spec.sides}
