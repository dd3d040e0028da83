"""Starts our CUDA kernels through CuPy on torch's memory and torch's stream, or says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from detaudit.core.errors import InconclusiveError
from detaudit.digest.kernels import kernel_path


class KernelsUnavailableError(InconclusiveError):
    """Kernels cannot run here. The text names what is missing and the cure; digests then take another path."""


class Launcher(Protocol):
    """Starts a kernel on the device of `tensors it is given pointers into`, in the order of that device's stream."""

    def launch(self, source: str, kernel: str, grid: int, block: int, arguments: Sequence[np.generic], /) -> None:
        """Start `kernel` of `kernels/SOURCE.cu`; pointers are passed as uint64. Returns before it has run."""


class CupyLauncher:
    """Kernels on one CUDA device: modules are compiled once, every launch goes to torch's current stream.

    Raises KernelsUnavailableError from the constructor.
    """

    def __init__(self, device: torch.device) -> None:
        self._cupy = usable_cupy()
        self._device = device
        self._modules: dict[str, Any] = {}

    def launch(self, source: str, kernel: str, grid: int, block: int, arguments: Sequence[np.generic], /) -> None:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        # Both contexts: CuPy looks a stream up on its own current device (facts: wrap device and stream together).
        with self._cupy.cuda.Device(self._device.index or 0), self._cupy.cuda.ExternalStream(stream):
            function = self._module(source).get_function(kernel)
            function((grid,), (block,), tuple(arguments))

    def _module(self, source: str) -> Any:
        module = self._modules.get(source)
        if module is None:
            code = kernel_path(source).read_text(encoding="utf-8")
            module = self._modules[source] = self._cupy.RawModule(code=code, options=("-std=c++17",))
        return module


def usable_cupy() -> Any:
    """The module `cupy`, where it fits this torch. Raises KernelsUnavailableError with what does not fit."""
    built = torch.version.cuda
    if not built:
        raise KernelsUnavailableError(f"this torch ({torch.__version__}) is built without CUDA")
    major = int(built.split(".")[0])
    if not torch.cuda.is_available():
        raise KernelsUnavailableError("torch finds no CUDA device or no driver; check nvidia-smi")
    try:
        import cupy  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise KernelsUnavailableError(
            f"CuPy cannot be imported ({error}); install detaudit[cuda{major}] for torch's CUDA {built}"
        ) from error
    runtime = int(cupy.cuda.runtime.runtimeGetVersion())
    if runtime // 1000 != major:
        raise KernelsUnavailableError(
            f"CuPy {cupy.__version__} is built for CUDA {runtime // 1000}, torch for CUDA {major} ({built}); "
            f"install detaudit[cuda{major}] and remove the other CuPy"
        )
    driver = int(cupy.cuda.runtime.driverGetVersion())
    if driver // 1000 < major:
        raise KernelsUnavailableError(
            f"the driver supports CUDA {driver // 1000}.{driver % 1000 // 10}, torch and CuPy need CUDA {major}; "
            "update the driver"
        )
    return cupy
