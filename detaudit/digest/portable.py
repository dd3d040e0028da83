"""The digest from torch operations alone, for any device: slower than a kernel, the same bits.

`PortableDigester.digest` gathers the chunk digests of all leaves on their device (`chunk_digests_of`, which takes
equal lengths together), copies them to the host once a device, and takes the roots there. Shape suffixes: N inputs of
equal length, K blocks of 1 KiB, S stripes of 64 bytes, L the 8 lanes of XXH3.

All arithmetic is on int64 that wraps, which is unsigned arithmetic modulo 2^64 but for shifts and products: a logical
shift masks the sign's copies away, and the upper half of a product comes from four products of 32-bit halves.

Source of XXH3: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest.host import SPARSE_PARTS, dtype_name, unsupported_reason
from detaudit.digest.spec import CHUNK, composite_digest, header, leaf_digest

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
"""XXH3's default secret, 192 bytes (the specification's kSecret)."""

P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
START = (P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1)
BLOCK, STRIPE = 1024, 64
BATCH = 64
"""Chunks taken at once: 4 MiB of input, about twelve times that in intermediates."""
LOW = 0xFFFFFFFF


def signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (value >> 63 << 64)


def secret64(offset: int) -> int:
    """The 8 bytes of the secret at `offset`, as an int64."""
    return int.from_bytes(SECRET[offset : offset + 8], "little", signed=True)


def _right(x: torch.Tensor, count: int) -> torch.Tensor:
    return (x >> count) & ((1 << (64 - count)) - 1)


def _rotated(x: torch.Tensor, count: int) -> torch.Tensor:
    return (x << count) | _right(x, 64 - count)


def _swapped(x: torch.Tensor) -> torch.Tensor:
    """The bytes of each int64 in reverse."""
    return x.contiguous().view(torch.uint8).reshape(-1, 8).flip(1).contiguous().view(torch.int64).reshape(x.shape)


def _folded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The two halves of the unsigned 128-bit product a*b, combined by exclusive or."""
    a0, a1, b0, b1 = a & LOW, _right(a, 32), b & LOW, _right(b, 32)
    low, cross = a0 * b0, a1 * b0
    middle = (cross & LOW) + a0 * b1 + _right(low, 32)  # at most 2^64 - 1: no carry is lost
    upper = a1 * b1 + _right(cross, 32) + _right(middle, 32)
    return upper ^ (a * b)


def _avalanche(h: torch.Tensor) -> torch.Tensor:
    h = (h ^ _right(h, 37)) * signed(0x165667919E3779F9)
    return h ^ _right(h, 32)


def _avalanche64(h: torch.Tensor) -> torch.Tensor:
    h = (h ^ _right(h, 33)) * signed(P64_2)
    h = (h ^ _right(h, 29)) * signed(P64_3)
    return h ^ _right(h, 32)


def _read64(data: torch.Tensor, offset: int) -> torch.Tensor:
    return data[:, offset : offset + 8].clone(memory_format=torch.contiguous_format).view(torch.int64)[:, 0]


def _read32(data: torch.Tensor, offset: int) -> torch.Tensor:
    word = data[:, offset : offset + 4].clone(memory_format=torch.contiguous_format).view(torch.int32)[:, 0]
    return word.to(torch.int64) & LOW


def _short(data: torch.Tensor) -> torch.Tensor:
    """XXH3-64 of inputs uint8 `[N, 1..16]`, int64 `[N]`."""
    length = data.shape[1]
    if length > 8:
        low = _read64(data, 0) ^ (secret64(24) ^ secret64(32))
        high = _read64(data, length - 8) ^ (secret64(40) ^ secret64(48))
        return _avalanche(length + _swapped(low) + high + _folded(low, high))
    if length > 3:
        h = (_read32(data, length - 4) + (_read32(data, 0) << 32)) ^ (secret64(8) ^ secret64(16))
        h = (h ^ _rotated(h, 49) ^ _rotated(h, 24)) * signed(0x9FB21C651E98DF25)
        h = (h ^ (_right(h, 35) + length)) * signed(0x9FB21C651E98DF25)
        return h ^ _right(h, 28)
    byte = data.to(torch.int64)
    combined = byte[:, 0] << 16 | byte[:, length >> 1] << 24 | byte[:, length - 1] | length << 8
    return _avalanche64(combined ^ ((secret64(0) & LOW) ^ (_right_int(secret64(0), 32))))


def _right_int(value: int, count: int) -> int:
    return (value & 0xFFFFFFFFFFFFFFFF) >> count


def _mix16(data: torch.Tensor, offset: int, secret: int) -> torch.Tensor:
    return _folded(_read64(data, offset) ^ secret64(secret), _read64(data, offset + 8) ^ secret64(secret + 8))


def _middle(data: torch.Tensor) -> torch.Tensor:
    """XXH3-64 of inputs uint8 `[N, 17..240]`."""
    length = data.shape[1]
    total = torch.full((data.shape[0],), signed(length * P64_1), dtype=torch.int64, device=data.device)
    if length <= 128:
        for pair in reversed(range((length - 1) // 32 + 1)):
            total = total + _mix16(data, 16 * pair, 32 * pair) + _mix16(data, length - 16 * (pair + 1), 32 * pair + 16)
        return _avalanche(total)
    for index in range(8):
        total = total + _mix16(data, 16 * index, 16 * index)
    total = _avalanche(total)
    for index in range(8, length // 16):
        total = total + _mix16(data, 16 * index, 16 * (index - 8) + 3)
    return _avalanche(total + _mix16(data, length - 16, 136 - 17))


def _long(data: torch.Tensor) -> torch.Tensor:
    """XXH3-64 of inputs uint8 `[N, 241..]`: sums of the stripes of each block, then a chain over the blocks."""
    count, length = data.shape
    blocks, device = (length - 1) // BLOCK, data.device
    stripes = (length - 1 - blocks * BLOCK) // STRIPE
    key_SL = torch.tensor([[secret64(8 * (s + j)) for j in range(8)] for s in range(16)], device=device)
    scramble_L = torch.tensor([secret64(128 + 8 * j) for j in range(8)], device=device)
    acc_NL = torch.tensor([signed(value) for value in START], device=device).repeat(count, 1)
    if blocks:
        full_NKSL = _words(data[:, : blocks * BLOCK]).view(count, blocks, 16, 8)
        sums_NKL = _stripe_sums(full_NKSL, key_SL)
        for block in range(blocks):
            acc_NL = acc_NL + sums_NKL[:, block]
            acc_NL = ((acc_NL ^ _right(acc_NL, 47)) ^ scramble_L) * P32_1
    if stripes:
        rest = data[:, blocks * BLOCK : blocks * BLOCK + stripes * STRIPE]
        acc_NL = acc_NL + _stripe_sums(_words(rest).view(count, stripes, 8), key_SL[:stripes])
    last_L = torch.tensor([[secret64(121 + 8 * j) for j in range(8)]], device=device)
    acc_NL = acc_NL + _stripe_sums(_words(data[:, length - STRIPE :]).view(count, 1, 8), last_L)
    total = torch.full((count,), signed(length * P64_1), dtype=torch.int64, device=device)
    for pair in range(4):
        left, right = secret64(11 + 16 * pair), secret64(19 + 16 * pair)
        total = total + _folded(acc_NL[:, 2 * pair] ^ left, acc_NL[:, 2 * pair + 1] ^ right)
    return _avalanche(total)


def _words(data: torch.Tensor) -> torch.Tensor:
    return data.clone(memory_format=torch.contiguous_format).view(torch.int64)


def _stripe_sums(words_SL: torch.Tensor, key_SL: torch.Tensor) -> torch.Tensor:
    """What stripes `[..., S, 8]` add to the lanes, `[..., 8]`: a product in its lane, a word in the one beside."""
    keyed = words_SL ^ key_SL
    products = (keyed & LOW) * _right(keyed, 32)
    beside = words_SL.reshape(*words_SL.shape[:-1], 4, 2).flip(-1).reshape(words_SL.shape)
    return torch.sum(products + beside, -2)


def xxh3_64(data: torch.Tensor) -> torch.Tensor:
    """XXH3-64, seed 0, of N inputs of equal length: uint8 `[N, length]` with length >= 1, to int64 `[N]`."""
    length = data.shape[1]
    if length <= 16:
        return _short(data)
    return _middle(data) if length <= 240 else _long(data)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The logical bytes of a dense tensor on its own device, uint8 `[nbytes]`; a view where it can be.

    Raises UnsupportedLeafError.
    """
    reason = unsupported_reason(tensor)
    if reason:
        raise UnsupportedLeafError(reason)
    with torch.no_grad():
        if tensor.element_size() == 1:  # a copy of a bool may turn a byte of 2 into 1
            return tensor.detach().view(torch.uint8).contiguous().reshape(-1)
        return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def chunk_digests_of(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The chunk digests of flat uint8 leaves of one device, int64 `[chunks]` each, on that device. Full chunks of a
    leaf are taken together, and so are tails and small leaves of equal length, whichever leaf they belong to."""
    full = [_full_chunks(leaf) for leaf in leaves]
    tails: dict[int, list[int]] = {}
    for index, leaf in enumerate(leaves):
        if leaf.numel() % CHUNK:
            tails.setdefault(leaf.numel() % CHUNK, []).append(index)
    for length, owners in tails.items():
        most = max(BATCH * CHUNK // length, 1)
        for start in range(0, len(owners), most):
            chosen = owners[start : start + most]
            found = xxh3_64(torch.stack([leaves[index][-length:] for index in chosen]))
            for row, index in enumerate(chosen):
                full[index].append(found[row : row + 1])
    return [torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64) for parts in full]


def _full_chunks(leaf: torch.Tensor) -> list[torch.Tensor]:
    whole = leaf.numel() // CHUNK
    rows = leaf[: whole * CHUNK].view(whole, CHUNK)
    return [xxh3_64(rows[start : start + BATCH]) for start in range(0, whole, BATCH)]


class PortableDigester:
    """Digests of lists of tensors of any device and layout. Keeps nothing between calls."""

    def digest(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """The digests of `tensors` in order; one copy to the host a device. Raises UnsupportedLeafError."""
        found: dict[int, int] = {}
        dense: dict[torch.device, list[int]] = {}
        for index, tensor in enumerate(tensors):
            if tensor.layout in SPARSE_PARTS:
                found[index] = self._sparse(tensor)
            else:
                dense.setdefault(tensor.device, []).append(index)
        for indices in dense.values():
            found.update(zip(indices, self._dense([tensors[index] for index in indices]), strict=True))
        return [found[index] for index in range(len(tensors))]

    def _dense(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        per_leaf = chunk_digests_of([flat_bytes(tensor) for tensor in tensors])
        filled = [digests for digests in per_leaf if digests.numel()]
        body = torch.cat(filled).cpu().tolist() if filled else []
        roots, start = [], 0
        for tensor, digests in zip(tensors, per_leaf, strict=True):
            words = body[start : start + digests.numel()]
            start += digests.numel()
            joined = b"".join(word.to_bytes(8, "big", signed=True) for word in words)
            head = header(dtype_name(tensor.dtype), tensor.shape, tensor.nbytes)
            roots.append(leaf_digest(head, joined))
        return roots

    def _sparse(self, tensor: torch.Tensor) -> int:
        reason = unsupported_reason(tensor)
        if reason:
            raise UnsupportedLeafError(reason)
        name, parts = SPARSE_PARTS[tensor.layout]
        whole = tensor.detach()
        return composite_digest(name, tensor.shape, self.digest([getattr(whole, part)() for part in parts]))


def tensor_digest(tensor: torch.Tensor) -> int:
    """The digest of one tensor. Raises UnsupportedLeafError."""
    return PortableDigester().digest([tensor])[0]
