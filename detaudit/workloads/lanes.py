"""The sampler's own random numbers: 128 xorshift32 lanes in one tensor, on the device of the replay memory.

Source: Marsaglia, "Xorshift RNGs", 2003, triple (13, 17, 5). torch has few uint32 operations, so the arithmetic
runs in int64 under a 32-bit mask; what the outside sees is uint32.
"""

from __future__ import annotations

import torch
from torch import Tensor

LANES = 128
_MASK = 0xFFFF_FFFF
_GOLDEN = 0x9E37_79B9


def _mix(word: int) -> int:
    """Finaliser of MurmurHash3 (32 bit): neighbouring seeds and lanes get unrelated states."""
    word = ((word ^ (word >> 16)) * 0x85EB_CA6B) & _MASK
    word = ((word ^ (word >> 13)) * 0xC2B2_AE35) & _MASK
    return word ^ (word >> 16)


def lane_seeds(seed: int) -> list[int]:
    """The 128 start states for a seed of up to 64 bits; none is 0, the one state xorshift cannot leave."""
    base = _mix(seed & _MASK) ^ _mix((seed >> 32 & _MASK) ^ _GOLDEN)
    return [_mix((base + lane * _GOLDEN) & _MASK) or _GOLDEN for lane in range(LANES)]


class LanePrng:
    """A seeded generator of uniform numbers whose whole state is one uint32 tensor of 128 lanes."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._state_L = torch.zeros(LANES, dtype=torch.int64, device=device)
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Set all lanes from `seed`."""
        self._state_L.copy_(torch.tensor(lane_seeds(seed)))

    @property
    def state(self) -> Tensor:
        """A copy of the lanes, uint32 `[128]`."""
        return self._state_L.to(torch.uint32)

    def uniform(self, count: int) -> Tensor:
        """`count` numbers in [0, 1), float32, multiples of 2^-24; all lanes advance ceil(count / 128) times."""
        rounds = [self._advance() for _ in range(-(-count // LANES))]
        return (torch.cat(rounds)[:count] >> 8).to(torch.float32) * 2.0**-24

    def _advance(self) -> Tensor:
        word_L = self._state_L
        word_L = word_L ^ (word_L << 13 & _MASK)
        word_L = word_L ^ (word_L >> 17)
        self._state_L = word_L ^ (word_L << 5 & _MASK)
        return self._state_L
