"""The grammar of dump keys.

Module: `Module.[{chunk}.]{dotted.path}.{Class}.{forward|backward}.{call}` (MindSpore: `Cell.`). Parameter gradient: the
same with `parameters_grad.{n}`, where n counts hook triggers and goes on from step to step. API:
`{Prefix}.{api}.{call}.{forward|backward}`, where the api may hold dots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

MODULE, API, GRADIENT, OTHER = "module", "api", "gradient", "other"
FORWARD, BACKWARD = "forward", "backward"

_MODULE_PREFIXES = ("Module", "Cell")
_TE = re.compile(r"\.TE(?=[A-Z])")
_FUSED = re.compile(r"FlashAttention|FusedAttention|FlashSelfAttention")
_VENDOR = re.compile(r"MindSpeed(?=[A-Z])|Fused(?=RMSNorm|LayerNorm)")
_WRAPPERS = ("module.", "network_with_loss.")


@dataclass(frozen=True, slots=True)
class Key:
    """A dump key taken apart. `path` is the module path without chunk and class, or the API's name with its prefix;
    `call` counts from 0 within a step (parameter gradients: across steps)."""

    text: str
    kind: str
    path: str
    cls: str = ""
    direction: str = ""
    call: int = 0
    chunk: str = ""


@lru_cache(maxsize=1 << 17)
def parse_key(text: str) -> Key:
    """Take a dump key apart; what fits no form comes back with kind `other`."""
    parts = text.split(".")
    if parts[0] in _MODULE_PREFIXES and len(parts) >= 5 - (parts[0] in _MODULE_PREFIXES) and parts[-1].isdigit():
        direction = parts[-2]
        body = parts[1:-2]
        if direction in (FORWARD, BACKWARD, "parameters_grad") and len(body) >= 2:
            chunk = body[0] if body[0].isdigit() else ""
            path = ".".join(body[1:-1] if chunk else body[:-1])
            kind = GRADIENT if direction == "parameters_grad" else MODULE
            return Key(text, kind, path, body[-1], BACKWARD if kind == GRADIENT else direction, int(parts[-1]), chunk)
    if len(parts) >= 4 and parts[-1] in (FORWARD, BACKWARD) and parts[-2].isdigit():
        return Key(text, API, ".".join(parts[:-2]), direction=parts[-1], call=int(parts[-2]))
    return Key(text, OTHER, text)


@lru_cache(maxsize=1 << 17)
def normalised(path: str) -> str:
    """A module path or class as both sides of a comparison would write it: Transformer Engine and MindSpeed prefixes,
    names of fused attention, and the `module.` nesting of wrappers removed."""
    text = _VENDOR.sub("", _TE.sub(".", "." + path)[1:])
    text = _FUSED.sub("Attention", text)
    while text.startswith(_WRAPPERS):
        text = text[text.index(".") + 1 :]
    return text


_FUSED_APIS = {
    "npu_rms_norm": "rms_norm",
    "norm.RmsNorm": "rms_norm",
    "npu_fusion_attention": "fused_attention",
    "flash_attention_score": "fused_attention",
    "scaled_dot_product_attention": "fused_attention",
}


@lru_cache(maxsize=1 << 17)
def normalised_api(path: str) -> str:
    """An API name without the namespace it was called through: NPU, Triton, Functional and Mint forms of one
    operation compare."""
    name = path.split(".", 1)[-1]
    return _FUSED_APIS.get(name, name)
