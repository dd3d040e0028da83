"""The layers of a dumped model, in execution order, and the anchors by which they are compared.

A layer is a numbered module (`decoder.layers.3`, `layer1.0`): the outermost number in a module path, class names and
call indices left aside. Numbers do not order layers (pipeline chunks restart at 0, experts are numbered inside a
layer, encoders and decoders both begin at 0); the order of execution in dump.json does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from detaudit.spike.dump_keys import BACKWARD, FORWARD, MODULE, normalised
from detaudit.spike.read_dump import Dump, Entry

WHOLE_LAYER = "(layer output)"
OUTSIDE = "(outside layers)"
PREFERRED = ("input_layernorm", "self_attention", "mlp", "pre_mlp_layernorm", "post_attention_layernorm")
MIN_ANCHORS = 3
Place = tuple[str, str, str, int]
"""(chunk, normalised module path, direction, call): what a module entry is compared by."""


@dataclass(frozen=True)
class Layer:
    """A numbered module. `label` is its path (with the chunk in front where there are several), `number` its index,
    None for a module outside all layers."""

    label: str
    chunk: str
    path: str
    number: int | None


@dataclass
class Structure:
    """Module entries of one dump by place; `clashes` are places that two entries claim after normalisation."""

    dump: Dump
    at: dict[Place, Entry] = field(default_factory=dict)
    clashes: set[Place] = field(default_factory=set)
    under: dict[tuple[str, str], list[Place]] = field(default_factory=dict)
    """Places by (chunk, layer path) or, outside layers, by (chunk, module path)."""


def structure_of(dump: Dump) -> Structure:
    """Index a dump's module entries. Recomputed forwards are left out: they repeat a forward inside the backward."""
    found = Structure(dump)
    for entry in dump.entries.values():
        key = entry.key
        if key.kind != MODULE or (key.direction == FORWARD and entry.recompute):
            continue
        path = normalised(key.path)
        place = (key.chunk, path, key.direction, key.call)
        if place in found.at:
            found.clashes.add(place)
            continue
        found.at[place] = entry
        found.under.setdefault((key.chunk, layer_path(path) or path), []).append(place)
    return found


def layer_path(path: str) -> str:
    """The path up to its outermost number; empty when there is none."""
    parts = path.split(".")
    for i, part in enumerate(parts):
        if part.isdigit() and i:
            return ".".join(parts[: i + 1])
    return ""


def layers_of(structure: Structure) -> list[Layer]:
    """Layers, and modules outside them, in order of first execution in the forward pass."""
    chunks = {chunk for chunk, *_ in structure.at}
    first: dict[tuple[str, str], int] = {}
    for (chunk, path, direction, _), entry in structure.at.items():
        where = (chunk, layer_path(path) or path)
        order = entry.order if direction == FORWARD else entry.order + 10**9
        first[where] = min(first.get(where, order), order)
    layers = []
    for chunk, path in sorted(first, key=lambda where: first[where]):
        last = path.rsplit(".", 1)[-1]
        label = f"{chunk}:{path}" if len(chunks) > 1 else path
        layers.append(Layer(label, chunk, path, int(last) if layer_path(path) == path and last.isdigit() else None))
    return layers


def backward_order(structure: Structure, layers: list[Layer]) -> list[Layer]:
    """Layers in order of execution of the backward pass; those without a backward entry come where the reversed forward
    order puts them."""
    first: dict[tuple[str, str], int] = {}
    for (chunk, path, direction, _), entry in structure.at.items():
        if direction == BACKWARD:
            where = (chunk, layer_path(path) or path)
            first[where] = min(first.get(where, entry.order), entry.order)
    ordered: list[Layer] = []
    known = [layer for layer in layers if (layer.chunk, layer.path) in first]
    known.sort(key=lambda layer: first[layer.chunk, layer.path])
    reverse = list(reversed(layers))
    place = {layer: i for i, layer in enumerate(reverse)}
    for layer in known:
        ordered.append(layer)
    for layer in reverse:
        if (layer.chunk, layer.path) not in first:
            at = next((i for i, other in enumerate(ordered) if place[other] > place[layer]), len(ordered))
            ordered.insert(at, layer)
    return ordered


def anchor_of(layer: Layer, path: str) -> str:
    """The anchor that a module path inside a layer belongs to: the first name after the layer's number."""
    if layer.number is None:
        return OUTSIDE
    rest = path[len(layer.path) + 1 :]
    return rest.split(".", 1)[0] if rest else WHOLE_LAYER


def anchors_of(structures: list[Structure]) -> list[str]:
    """Anchors that occur in every dump, in two layers at least (or in the only one), preferred names first."""
    counts: list[Counter[str]] = []
    for structure in structures:
        seen: set[tuple[str, str, str]] = set()
        for chunk, path, *_ in structure.at:
            inside = layer_path(path)
            if inside:
                rest = path[len(inside) + 1 :]
                seen.add((chunk, inside, rest.split(".", 1)[0] if rest else WHOLE_LAYER))
        counts.append(Counter(anchor for *_, anchor in seen))
        counts[-1]["(layers)"] = len({(chunk, inside) for chunk, inside, _ in seen})
    first = counts[0]
    common = [
        anchor
        for anchor in first
        if anchor != "(layers)" and all(count[anchor] >= min(2, count["(layers)"]) > 0 for count in counts)
    ]
    rank = {name: i for i, name in enumerate(PREFERRED)}
    return sorted(common, key=lambda name: (rank.get(name, len(rank)), common.index(name)))


def calls_of(structures: list[Structure]) -> list[int]:
    """Call indices of the forward pass that every dump has for some numbered layer: the passes that can be compared."""
    common: set[int] | None = None
    for structure in structures:
        own = {call for _, path, direction, call in structure.at if direction == FORWARD and layer_path(path)}
        own = own or {call for *_, call in structure.at}
        common = own if common is None else common & own
    return sorted(common or ())
