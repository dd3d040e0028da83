"""The format of a trail: a magic, then frames. The whole layout of bytes stands here; docs/notes/format.md tells it.

A frame is an 8-byte head, a payload and an 8-byte checksum. The head holds kind, a reserved byte of zero, a check of
its own and the payload length. The head check is CRC-16-CCITT (polynomial 0x1021, initial value 0xFFFF) over kind and
length: unlike a hash it finds every one or two flipped bits for certain, so a damaged length is an error that names
the frame and can never pass for a torn tail. A torn tail is a whole head (or less) with too few bytes behind it:
what a killed writer leaves.

    file    = magic (8 bytes) version (u32) zero (u32) frame*
    frame   = kind (u8) zero (u8) head check (u16) length (u32) payload checksum (u64)

All integers are little-endian. The checksum is XXH3-64 over head and payload, seeded with the frame's number, so that
whole frames cannot change places unseen.

History. Version 1: first release.
"""

from __future__ import annotations

import json
import struct
import zlib
from binascii import crc_hqx
from collections.abc import Mapping, Sequence
from enum import IntEnum

from xxhash import xxh3_64_intdigest

from detaudit.core.model import Layout, Leaf, Stats, StepKind

MAGIC = b"DETAUDIT"
VERSION = 1
PREAMBLE = struct.Struct("<8sII")
HEAD = struct.Struct("<BBHI")
CHECKSUM = struct.Struct("<Q")
STEP = struct.Struct("<QIIQ")  # step, layout id, 1 when stats follow, chain
STATS = struct.Struct("<QdddQQ")  # bag, sumsq, low, high, nans, infs
OVERHEAD = HEAD.size + CHECKSUM.size


class Kind(IntEnum):
    HEADER = 1
    LAYOUT = 2
    STEP = 3
    NOTE = 4


def preamble() -> bytes:
    return PREAMBLE.pack(MAGIC, VERSION, 0)


def frame(kind: Kind, payload: bytes, number: int) -> bytes:
    """The bytes of the frame `number` (0-based) of a file."""
    head = HEAD.pack(kind, 0, head_check(kind, len(payload)), len(payload))
    return head + payload + CHECKSUM.pack(xxh3_64_intdigest(head + payload, seed=number))


def head_check(kind: int, length: int) -> int:
    """CRC-16-CCITT over kind and length. Its initial value keeps a run of zero bytes from being a valid head."""
    return crc_hqx(kind.to_bytes(1, "little") + length.to_bytes(4, "little"), 0xFFFF)


def canonical_json(value: object) -> bytes:
    """The one JSON text of a value: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def pack_json(value: object) -> bytes:
    return zlib.compress(canonical_json(value), 6)


def unpack_json(payload: bytes | memoryview) -> object:
    return json.loads(zlib.decompress(payload))


def layout_value(layout: Layout) -> dict[str, object]:
    """A layout as plain JSON: [name, dtype, shape, unsupported, aliases] a leaf, empty ends left out."""
    return {
        "kind": str(layout.kind),
        "optimizer": layout.optimizer,
        "leaves": [_leaf_value(leaf) for leaf in layout.leaves],
    }


def _leaf_value(leaf: Leaf) -> list[object]:
    row: list[object] = [leaf.name, leaf.dtype, list(leaf.shape), leaf.unsupported, list(leaf.aliases)]
    while row and not row[-1]:
        row.pop()
    return row


def layout_from(value: Mapping[str, object]) -> Layout:
    """The inverse of `layout_value`. Raises KeyError, TypeError or ValueError for anything else."""
    rows = value["leaves"]
    if not isinstance(rows, list):
        raise TypeError("leaves")
    return Layout(
        leaves=tuple(_leaf_from(row) for row in rows),
        kind=StepKind(str(value["kind"])),
        optimizer=str(value["optimizer"]),
    )


def _leaf_from(row: Sequence[object]) -> Leaf:
    filled: list[object] = list(row)
    filled.extend(("", "", (), "", ())[len(row) :])
    name, dtype, shape, unsupported, aliases = filled
    if not isinstance(shape, Sequence) or not isinstance(aliases, Sequence):
        raise TypeError(f"leaf {name}")
    return Leaf(str(name), str(dtype), tuple(map(int, shape)), str(unsupported), tuple(map(str, aliases)))


def layout_digest(layout: Layout) -> int:
    """What of a layout goes into the chain: everything."""
    return xxh3_64_intdigest(canonical_json(layout_value(layout)))


def chain(previous: int, step: int, layout: int, digests: bytes | memoryview) -> int:
    """The running hash: XXH3-64 over previous chain, step number, layout digest and the digests of the step."""
    return xxh3_64_intdigest(struct.pack("<QQQ", previous, step, layout) + digests)


def pack_step(step: int, layout_id: int, running: int, digests: bytes, stats: Sequence[Stats] = ()) -> bytes:
    """The payload of a step frame; `digests` are 8 little-endian bytes a leaf."""
    body = STEP.pack(step, layout_id, 1 if stats else 0, running) + digests
    if stats:
        body += b"".join(STATS.pack(s.bag, s.sumsq, s.low, s.high, s.nans, s.infs) for s in stats)
    return body


def unpack_stats(payload: memoryview, count: int) -> tuple[Stats, ...]:
    """The stats of a step frame with `count` leaves; empty when it holds none."""
    if not STEP.unpack_from(payload)[2]:
        return ()
    rest = payload[STEP.size + 8 * count :]
    return tuple(Stats(*fields) for fields in STATS.iter_unpack(rest[: STATS.size * count]))
