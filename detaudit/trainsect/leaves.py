"""The leaves of an encoded state: names, what they are, SHA-256; and the first one at which two states differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch

from detaudit.digest.host import SPARSE_PARTS, dtype_name, plain, view
from detaudit.trainsect.codec import dumps

ROWS = ("dict", "OrderedDict", "defaultdict")
ITEMS = ("list", "tuple", "Size", "deque")


def leaves(node: Any, tensors: list[torch.Tensor], path: str = "") -> dict[str, str]:
    """Leaf name -> `description sha256` in the order of the state."""
    return {name: _describe(inner, tensors) for name, inner in walk(node, path)}


def walk(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The (name, node) of each leaf: containers are walked into, an empty one is a leaf itself."""
    tag = node[0] if isinstance(node, list) else ""
    if tag in ROWS and node[1]:
        for key, inner in node[1]:
            text = key if isinstance(key, str) else str(key) if isinstance(key, int) else dumps(key)
            yield from walk(inner, f"{path}.{text}" if path else text)
    elif tag in ITEMS and node[1]:
        for index, inner in enumerate(node[1]):
            yield from walk(inner, f"{path}.{index}" if path else str(index))
    else:
        yield path, node


def _describe(node: Any, tensors: list[torch.Tensor]) -> str:
    if isinstance(node, list) and node[0] == "tensor":
        return describe_tensor(tensors[node[1]])
    places = list(_places(node))
    whole = hashlib.sha256(dumps(_without_places(node)).encode())
    for place in places:
        whole.update(describe_tensor(tensors[place]).encode())
    return f"{node[0] if isinstance(node, list) else type(node).__name__} {whole.hexdigest()}"


def _places(node: Any) -> Iterator[int]:
    """The tensors that a leaf node refers to: packed words of a generator, bytes of an array, sets of tensors."""
    if not isinstance(node, list) or not node:
        return
    at = (
        {"numpy.array": 4, "python.random": 2, "torch.generator": 2, "tensor": 1}.get(node[0])
        if isinstance(node[0], str)
        else None
    )
    if at is not None:
        yield node[at]
        return
    for inner in node:
        yield from _places(inner)


def _without_places(node: Any) -> Any:
    if not isinstance(node, list) or not node:
        return node
    at = (
        {"numpy.array": 4, "python.random": 2, "torch.generator": 2, "tensor": 1}.get(node[0])
        if isinstance(node[0], str)
        else None
    )
    return [None if index == at else _without_places(inner) for index, inner in enumerate(node)]


def describe_tensor(tensor: torch.Tensor) -> str:
    """`dtype [shape] strides sha256` of a tensor; the hash is over its bytes in C order."""
    if tensor.layout in SPARSE_PARTS:
        name, parts = SPARSE_PARTS[tensor.layout]
        inner = " ".join(describe_tensor(getattr(tensor.detach(), part)()) for part in parts)
        return f"{name} {list(tensor.shape)} {hashlib.sha256(inner.encode()).hexdigest()}"
    source = plain(tensor.detach())
    found = hashlib.sha256(view(source) if source.nbytes else b"").hexdigest()
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)} {list(tensor.stride())} {found}"


def sha256_of(found: Mapping[str, str], *globs: str) -> str:
    """SHA-256 over the leaves (those that match a glob, all without one), names and order included."""
    whole = hashlib.sha256()
    for name, text in found.items():
        if not globs or any(fnmatchcase(name, glob) for glob in globs):
            whole.update(f"{name}\0{text}\0".encode())
    return whole.hexdigest()


def first_difference(expected: Mapping[str, str], found: Mapping[str, str]) -> tuple[str, str, str] | None:
    """(leaf, expected, found) of the first leaf that differs, in the order of the expected state; None when equal."""
    for name, text in expected.items():
        if found.get(name) != text:
            return name, text, found.get(name, "missing")
    strange = next((name for name in found if name not in expected), None)
    return None if strange is None else (strange, "missing", found[strange])
