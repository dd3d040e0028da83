"""The digest in words, its constants, and the golden vectors every implementation must reproduce.

1. Take the leaf's raw bytes in logical (C) order. Bytes count as they are: -0.0, NaN payloads, a bool byte of 2.
2. Cut them into chunks of 64 KiB; the last may be shorter; zero bytes give no chunk. The digest of a chunk is
   XXH3-64 with seed 0, written in xxHash's canonical form: 8 bytes, most significant first.
3. Make the header, little-endian: format byte (1), dtype code (1 byte), number of dimensions (2 bytes), chunk size
   (4 bytes), each dimension (8 bytes), byte count (8 bytes). It is a whole number of 8-byte words.
4. The leaf digest is XXH3-64, seed 0, of the header followed by the chunk digests.

A composite leaf (sparse tensors) has format byte 2, the shape of the whole, and instead of chunk digests the leaf
digests of its parts. A plain value (float, string, list) is a leaf of dtype `value` and one dimension over its tagged
encoding (`digest/values.py`).

The canonical form of the chunk digests is what lets a host digest a step in three passes of C code without turning
digests into Python integers; a GPU writes it with one byte permutation. XXH3 is not collision-resistant against an
adversary; what a third party relies on carries SHA-256 as well.

Source of XXH3: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from xxhash import xxh3_64_digest, xxh3_64_intdigest

VERSION = 1
"""Goes into manifests and certificates: digests of different versions are never compared."""

CHUNK = 65536
FORMAT_BYTES = 1
FORMAT_COMPOSITE = 2

DTYPE_CODES: dict[str, int] = {
    "value": 0,
    "bool": 1,
    "uint8": 2,
    "int8": 3,
    "int16": 4,
    "int32": 5,
    "int64": 6,
    "float16": 7,
    "float32": 8,
    "float64": 9,
    "complex32": 10,
    "complex64": 11,
    "complex128": 12,
    "bfloat16": 13,
    "uint16": 14,
    "uint32": 15,
    "uint64": 16,
    "float8_e4m3fn": 17,
    "float8_e5m2": 18,
    "float8_e4m3fnuz": 19,
    "float8_e5m2fnuz": 20,
    "float8_e8m0fnu": 21,
    "float4_e2m1fn_x2": 22,
    "sparse_coo": 64,
    "sparse_csr": 65,
    "sparse_csc": 66,
    "sparse_bsr": 67,
    "sparse_bsc": 68,
}
"""Numbers are part of the format: append, never renumber. A dtype that is not listed is an unsupported leaf."""


def header(dtype: str, shape: Iterable[int], nbytes: int, form: int = FORMAT_BYTES) -> bytes:
    """The header of a leaf. `dtype` is torch's name without its prefix; raises KeyError for an unknown one."""
    dims = tuple(shape)
    return struct.pack(f"<BBHI{len(dims)}QQ", form, DTYPE_CODES[dtype], len(dims), CHUNK, *dims, nbytes)


def chunk_digests(data: memoryview | bytes) -> bytes:
    """The canonical chunk digests of raw bytes, joined: 8 bytes for each 64 KiB."""
    if len(data) <= CHUNK:
        return xxh3_64_digest(data) if len(data) else b""
    return b"".join(map(xxh3_64_digest, chunks(data)))


def chunks(data: memoryview | bytes) -> list[memoryview | bytes]:
    """The chunks of raw bytes, views where `data` is one."""
    return [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]


def leaf_digest(head: bytes, chunks: bytes) -> int:
    """The 64-bit digest of a leaf from its header and its chunk digests."""
    return xxh3_64_intdigest(head + chunks)


def composite_digest(dtype: str, shape: Iterable[int], parts: Iterable[int]) -> int:
    """The digest of a leaf made of parts, each given by its own leaf digest."""
    joined = b"".join(part.to_bytes(8, "big") for part in parts)
    return leaf_digest(header(dtype, shape, len(joined), FORMAT_COMPOSITE), joined)


def digest_bytes(dtype: str, shape: Iterable[int], data: bytes | memoryview) -> int:
    """The digest of raw bytes in C order: the reference that every other implementation is measured against."""
    return leaf_digest(header(dtype, shape, len(data)), chunk_digests(data))


@dataclass(frozen=True)
class GoldenVector:
    """A leaf of `count` elements whose bytes are `pattern_bytes(nbytes)`, and its digest."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: int


def pattern_bytes(nbytes: int) -> bytes:
    """The bytes of the golden vectors: a 64-bit linear congruential generator's top byte, seed 1.

    x[0] = 1, x[i+1] = 6364136223846793005 x[i] + 1442695040888963407 mod 2^64; byte i is x[i+1] >> 56 (Knuth's MMIX
    constants). Every length class of XXH3 occurs among the vectors: 0, 1-3, 4-8, 9-16, 17-128, 129-240, longer.
    """
    state, out = 1, bytearray(nbytes)
    for index in range(nbytes):
        state = (6364136223846793005 * state + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        out[index] = state >> 56
    return bytes(out)
