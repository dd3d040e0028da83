"""Which implementation digests the tensors of a device, chosen once a device and proved on the golden vectors first.

`device_path(device)` gives a `DevicePath`: the CUDA kernels where CuPy fits; else `FallbackPath`, which gathers small
leaves into one copy to the host and hashes large ones where they lie by torch operations; where these miss a vector
(an int64 shift was once wrong on MPS), `HostCopy`. `choices()` says what was chosen and why, for the trail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from detaudit.core.errors import UnsupportedLeafError
from detaudit.core.model import Stats
from detaudit.digest import golden, host
from detaudit.digest import stats as host_stats
from detaudit.digest.device import CAPTURING, DeviceDigester
from detaudit.digest.device_stats import device_stats
from detaudit.digest.host import SPARSE_PARTS, dtype_name
from detaudit.digest.launcher import CupyLauncher, KernelsUnavailableError, Launcher
from detaudit.digest.portable import PortableDigester, flat_bytes
from detaudit.digest.spec import GoldenVector, digest_bytes

SMALL = 4 * 2**20
"""Leaves up to these bytes go to the host without kernels: the torch operations of one leaf are some 300 launches,
estimated at 2 to 5 ms, which a copy of 4 MiB undercuts. Not measured on a device."""

Read = Callable[[], int]


class DevicePath(Protocol):
    """Digests and stats of tensors of one device."""

    name: str

    def start(self, tensors: Sequence[torch.Tensor], /) -> list[Read]:
        """Digest the tensors as they are now; each result gives its digest when called, which may wait."""

    def stats(self, tensor: torch.Tensor, /) -> Stats:
        """The stats of a tensor."""


@dataclass(frozen=True)
class Choice:
    """What digests a device's tensors, and why nothing faster does."""

    device: str
    path: str
    why: str


class KernelPath:
    """CUDA kernels; nothing waits before a result is read."""

    name = "CUDA kernels"

    def __init__(self, device: torch.device, launcher: Launcher) -> None:
        self._device, self._launcher = device, launcher
        self._digester = DeviceDigester(device, launcher)

    def start(self, tensors: Sequence[torch.Tensor], /) -> list[Read]:
        return self._digester.start(tensors)

    def stats(self, tensor: torch.Tensor, /) -> Stats:
        if tensor.layout in SPARSE_PARTS:
            tensor = getattr(tensor.detach(), SPARSE_PARTS[tensor.layout][1][-1])()
        try:
            return device_stats([tensor], self._device, self._launcher)[0]
        except UnsupportedLeafError:
            return host_stats.EMPTY  # no memory, or a dtype without a float64 reading: as on the host


class FallbackPath:
    """Small leaves of a call by one copy to the host, large and sparse ones by torch operations on their device."""

    name = "copy to the host up to 4 MiB, torch operations above"

    def __init__(self) -> None:
        self._portable = PortableDigester()

    def start(self, tensors: Sequence[torch.Tensor], /) -> list[Read]:
        small = [i for i, t in enumerate(tensors) if t.layout not in SPARSE_PARTS and t.nbytes <= SMALL]
        chosen = set(small)
        large = [index for index in range(len(tensors)) if index not in chosen]
        found = dict(zip(small, _gathered([tensors[index] for index in small]), strict=True))
        found.update(zip(large, self._portable.digest([tensors[index] for index in large]), strict=True))
        return [_known(found[index]) for index in range(len(tensors))]

    def stats(self, tensor: torch.Tensor, /) -> Stats:
        return host_stats.leaf_stats(tensor)


class HostCopy:
    """A copy to the host for each leaf."""

    name = "copy to the host"

    def start(self, tensors: Sequence[torch.Tensor], /) -> list[Read]:
        return [_known(host.tensor_digest(tensor)) for tensor in tensors]

    def stats(self, tensor: torch.Tensor, /) -> Stats:
        return host_stats.leaf_stats(tensor)


def _known(digest: int) -> Read:
    return lambda: digest


def _gathered(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Digests of dense leaves of one device through a single copy of all their bytes."""
    flats = [flat_bytes(tensor) for tensor in tensors]
    joined = torch.cat(flats).cpu() if flats else torch.empty(0, dtype=torch.uint8)
    data = memoryview(host.view(joined)).cast("B") if joined.numel() else memoryview(b"")
    found, start = [], 0
    for tensor in tensors:
        found.append(digest_bytes(dtype_name(tensor.dtype), tensor.shape, data[start : start + tensor.nbytes]))
        start += tensor.nbytes
    return found


_PATHS: dict[torch.device, DevicePath] = {}
_CHOICES: list[Choice] = []


def choices() -> Sequence[Choice]:
    """What has been chosen so far in this process, one entry a device other than the CPU."""
    return _CHOICES


def device_path(device: torch.device) -> DevicePath:
    """The proved path of a device. Raises UnsupportedLeafError while a CUDA graph is being captured."""
    path = _PATHS.get(device)
    if path is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise UnsupportedLeafError(CAPTURING)  # a proof under capture would fail for good
        path, why = choose(device)
        _PATHS[device] = path
        _CHOICES.append(Choice(str(device), path.name, why))
    return path


def choose(device: torch.device) -> tuple[DevicePath, str]:
    """The fastest path that reproduces the golden vectors on a device, and why each faster one was passed over."""
    reasons = []
    for make in (_kernel_path, lambda _: FallbackPath()):
        try:
            path = make(device)
            missed = unproved(path, device)
        except KernelsUnavailableError as error:
            reasons.append(str(error))
            continue
        except Exception as error:  # a compiler, a driver or a backend: whatever it says, another path can do the work
            reasons.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
            continue
        if not missed:
            return path, "; ".join(reasons)
        reasons.append(f"{path.name} missed the golden vectors {', '.join(missed)}")
    return HostCopy(), "; ".join(reasons)


def unproved(path: DevicePath, device: torch.device | str) -> list[str]:
    """The golden vectors that a path misses, digests and stats; a dtype that the device has not is left out, and that
    nothing but such dtypes was left to prove counts as a miss. The torch operations are proved on every vector, not on
    the large ones alone."""
    placed = [(vector, tensor) for vector in golden.DIGESTS if (tensor := _placed(vector, device)) is not None]
    if not any(vector.dtype == "uint8" for vector, _ in placed):
        return ["every vector of dtype uint8: the device takes none"]
    tensors = [tensor for _, tensor in placed]
    found = {"": [read() for read in path.start(tensors)]}
    if isinstance(path, FallbackPath):
        found[" by torch operations"] = PortableDigester().digest(tensors)
    missed = [
        f"{vector.dtype}{list(vector.shape)}{how}"
        for how, digests in found.items()
        for (vector, _), digest in zip(placed, digests, strict=True)
        if digest != vector.digest
    ]
    for vector, expected in golden.STATS if isinstance(path, KernelPath) else ():
        if path.stats(golden.tensor(vector).to(device)) != expected:
            missed.append(f"stats of {vector.dtype}{list(vector.shape)}")
    return missed


def _placed(vector: GoldenVector, device: torch.device | str) -> torch.Tensor | None:
    try:
        return golden.tensor(vector).to(device)
    except (TypeError, RuntimeError):
        return None


def _kernel_path(device: torch.device) -> DevicePath:
    if device.type != "cuda":
        raise KernelsUnavailableError(f"there are no kernels for {device.type}")
    return KernelPath(device, CupyLauncher(device))


def leaf_stats(value: object) -> Stats:
    """The stats of any value: on its device where kernels run there, else as `stats.leaf_stats`."""
    if isinstance(value, torch.Tensor) and not value.is_cpu and not value.is_meta:
        try:
            return device_path(value.device).stats(value)
        except UnsupportedLeafError:
            return host_stats.EMPTY  # the leaf itself is named as unsupported by its digest
    return host_stats.leaf_stats(value)
