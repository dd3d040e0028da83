"""What of a process decides bits: the torch part of the manifest, the code, and the process's name among its peers."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy
import torch

from detaudit.core.env import Settings
from detaudit.core.model import RunManifest
from detaudit.trail import manifest as base

Identity = tuple[int, ...]


def _identity() -> Identity:
    """multiprocessing's own place of this process among its siblings: () in the first process, (2,) in its second."""
    return tuple(getattr(multiprocessing.current_process(), "_identity", ()))


class Family:
    """Which process of the run this is, equal in two runs: no process number, which never is."""

    def __init__(self) -> None:
        self._forks = 0
        self._forked_from: tuple[Identity, int] | None = None

    def before_fork(self) -> None:
        self._forks += 1

    def after_fork(self) -> None:
        self._forked_from, self._forks = (_identity(), self._forks), 0

    def process_name(self) -> str:
        """`rank1` where there are ranks; else `main`, `process2` (multiprocessing) or `main-fork1` (os.fork)."""
        rank = os.environ.get("RANK", "")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank = str(torch.distributed.get_rank())
        identity = _identity()
        name = f"rank{rank}" if rank.isdigit() else "process" + "-".join(map(str, identity)) if identity else "main"
        # A fork by multiprocessing has an identity of its own; one by os.fork has its parent's.
        if self._forked_from is not None and self._forked_from[0] == identity:
            name += f"-fork{self._forked_from[1]}"
        return name


FAMILY = Family()


def manifest(settings: Settings) -> RunManifest:
    """The manifest of this process, complete."""
    found = base.base_manifest(os.environ, sys.argv)
    digest, files = base.code_digest(user_files(), Path.cwd())
    decisive = {
        **found.decisive,
        "code": digest,
        "code_files": files,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda or "",
        "devices": [_device(index) for index in range(torch.cuda.device_count())],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        **_flags(),
        **({"toggle": settings.toggle} if settings.toggle else {}),
    }
    git = {"git_commit": base.git_commit(Path.cwd())}
    asked = {"every": settings.every, "steps": settings.steps}
    return RunManifest(decisive, {**found.context, **git, **asked, "torch_seed": torch.initial_seed()})


def _flags() -> dict[str, object]:
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "mkldnn": torch.backends.mkldnn.enabled,  # type: ignore[attr-defined]
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
    }


def _device(index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name} ({properties.multi_processor_count} SM)"


def user_files() -> list[Path]:
    """The source files of the user's program loaded so far: modules under the working directory or beside the script,
    not those of the interpreter or of installed packages."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    homes = [Path.cwd().resolve()] + ([Path(script).resolve().parent] if script else [])
    files = []
    for module in list(sys.modules.values()):
        path = _source(module)
        if path is not None and any(path.is_relative_to(home) for home in homes) and not _installed(path):
            files.append(path)
    return files


def _source(module: ModuleType) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if isinstance(name, str) and name.endswith(".py") else None


def _installed(path: Path) -> bool:
    prefixes = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    return "site-packages" in path.parts or any(path.is_relative_to(prefix) for prefix in prefixes)
