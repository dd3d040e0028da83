"""Golden vectors: digests and stats that every implementation must reproduce, kept as numbers in the repository."""

from __future__ import annotations

import torch

from detaudit.core.model import Stats
from detaudit.digest.spec import GoldenVector, pattern_bytes


def tensor(vector: GoldenVector) -> torch.Tensor:
    """The host tensor of a vector, from its pattern bytes."""
    flat = torch.frombuffer(bytearray(pattern_bytes(vector.nbytes) or b"\0"), dtype=torch.uint8)[: vector.nbytes]
    return flat.view(getattr(torch, vector.dtype)).reshape(vector.shape)


DIGESTS: tuple[GoldenVector, ...] = (
    GoldenVector("uint8", (0,), 0, 0x9AAFC5F95C62F5A8),
    GoldenVector("uint8", (1,), 1, 0xCB386BA147CAE675),
    GoldenVector("uint8", (3,), 3, 0x477A8085B515E458),
    GoldenVector("uint8", (4,), 4, 0x46301D3C193D7BE3),
    GoldenVector("uint8", (8,), 8, 0xC23E7670A7BE69BE),
    GoldenVector("uint8", (9,), 9, 0xD8F7C70C4F08CB9C),
    GoldenVector("uint8", (16,), 16, 0xAEB4E542C1BE85FC),
    GoldenVector("uint8", (17,), 17, 0xD706406D80D8FE57),
    GoldenVector("uint8", (128,), 128, 0x2B31E5EFEC7AB769),
    GoldenVector("uint8", (129,), 129, 0x742B7E4734C56110),
    GoldenVector("uint8", (240,), 240, 0x882BEC5CA92A3B4F),
    GoldenVector("uint8", (241,), 241, 0xA4184AC3C125F264),
    GoldenVector("uint8", (1024,), 1024, 0x84F030B39EF7BD84),
    GoldenVector("uint8", (65535,), 65535, 0xDEDD654DC47F2C37),
    GoldenVector("uint8", (65536,), 65536, 0xFBB7024CE5DFD2AF),
    GoldenVector("uint8", (65537,), 65537, 0xA0F8A15B710BF86E),
    GoldenVector("uint8", (131072,), 131072, 0xE2F4541FC8A6C12C),
    GoldenVector("float32", (), 4, 0x1F5B9BF42C081749),
    GoldenVector("float32", (7, 3), 84, 0x2DC3E4F6B56756E5),
    GoldenVector("float32", (3, 7), 84, 0x9ECA9A5DD254B577),
    GoldenVector("bfloat16", (7, 3), 42, 0xD34FF881DEDF8B27),
    GoldenVector("float64", (2, 3, 4), 192, 0x2A4DF4CFC07D4808),
    GoldenVector("int64", (5,), 40, 0x37283262BFC09F77),
    GoldenVector("float32", (256, 257), 263168, 0x26E9D1BCDF950577),
    GoldenVector("bool", (33,), 33, 0xFAF4321DBCFD7DF8),
    GoldenVector("complex64", (6,), 48, 0xC95645823D8B9643),
    GoldenVector("float16", (0, 4), 0, 0xD75ADF9F726C28DA),
)
