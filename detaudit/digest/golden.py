"""Golden vectors: digests and stats that every implementation must reproduce, kept as numbers in the repository."""

from __future__ import annotations

import math

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

STATS: tuple[tuple[GoldenVector, Stats], ...] = (
    (
        GoldenVector("float32", (), 4, 0x1F5B9BF42C081749),
        Stats(0x7A3083C9407661ED, 2.3303711735432122e42, 1.5265553293422457e21, 1.5265553293422457e21, 0, 0),
    ),
    (GoldenVector("uint8", (0,), 0, 0x9AAFC5F95C62F5A8), Stats(0x0000000000000000, 0.0, 0.0, 0.0, 0, 0)),
    (GoldenVector("bool", (300,), 300, 0xC4ABCB0848E1F876), Stats(0x6A0E8B8FCDBA1002, 297.0, 0.0, 1.0, 0, 0)),
    (
        GoldenVector("uint8", (65793,), 65793, 0x965E3A5672E55F79),
        Stats(0x425AB807C185A077, 1429999325.0, 0.0, 255.0, 0, 0),
    ),
    (GoldenVector("int8", (7, 11), 77, 0x0594A2AA658BE3ED), Stats(0x0BD4AA462B87A1C9, 447282.0, -128.0, 117.0, 0, 0)),
    (
        GoldenVector("uint16", (500,), 1000, 0x0B9EE15818B5EE2B),
        Stats(0xA0844CB2E10E86BD, 753305903760.0, 51.0, 65491.0, 0, 0),
    ),
    (
        GoldenVector("int32", (70000,), 280000, 0xF7C98A88224C7DAA),
        Stats(0x10302132B3EED982, 1.0774595151489384e23, -2147454293.0, 2147469614.0, 0, 0),
    ),
    (
        GoldenVector("uint64", (777,), 6216, 0x4246AEA710563EAC),
        Stats(0x4EFDAD70A2972CDE, 8.902885122217878e40, 1.4373731193223312e16, 1.8438074601414666e19, 0, 0),
    ),
    (
        GoldenVector("int64", (257,), 2056, 0x44E04BEF2DA8F430),
        Stats(0x88387D2614298ABA, 6.720397425818844e39, -9.19693036583261e18, 9.20369326037307e18, 0, 0),
    ),
    (
        GoldenVector("float16", (513,), 1026, 0x98AE85E1A897DCA7),
        Stats(0x165E5DB5DF8CA030, 51903988923.70444, -56224.0, 61600.0, 21, 0),
    ),
    (
        GoldenVector("bfloat16", (30, 100), 6000, 0x421F777B9E0262D5),
        Stats(0x95CDFB317A7A7E2C, 6.663536169874433e77, -2.5388254719491893e38, 3.1236857900945523e38, 18, 0),
    ),
    (
        GoldenVector("float32", (65536,), 262144, 0x75B19FBA98DA376C),
        Stats(0x4975933E1951D62C, 2.0076454128055013e79, -3.3887198900432934e38, 3.400748373058739e38, 276, 0),
    ),
    (
        GoldenVector("float32", (255, 258), 263160, 0xB479755553ECECF2),
        Stats(0x1B9074ECCBAEE252, 2.0222282645254856e79, -3.3887198900432934e38, 3.400748373058739e38, 277, 0),
    ),
    (
        GoldenVector("float64", (300,), 2400, 0xFEED360E5116562C),
        Stats(0x54E2DA7F6E0D14B1, math.inf, -5.462692818517627e307, 1.8318873376696586e307, 0, 0),
    ),
    (
        GoldenVector("complex64", (200,), 1600, 0x31E88F7603D15A31),
        Stats(0x55DD46585BE780B8, 1.1304338315441933e77, -2.097885887165802e38, 1.3073475351285925e38, 3, 0),
    ),
    (
        GoldenVector("float8_e4m3fn", (700,), 700, 0xBEC3E77F61131134),
        Stats(0x802702E9FC96E8FB, 5999443.270626068, -448.0, 448.0, 4, 0),
    ),
    (
        GoldenVector("float8_e5m2", (700,), 700, 0x120C506E73CC887B),
        Stats(0x802702E9FC96E8FB, 50487255353.17747, -49152.0, 57344.0, 11, 7),
    ),
)
"""Stats (bag, sumsq, low, high, nans, infs) of the same pattern bytes, from an implementation in Python integers and
loops (`tests/digest/digest_reference.py`). The integer types make the sums round at every addition, so a device that
adds in another order fails; float64 overflows; the float types hold NaN, and float8_e5m2 Inf."""
