"""What a run was, and whether two runs may be compared.

`decisive` entries decide bits: if they differ, the runs are not comparable unless the user overrides it, and the
override stands in the verdict. `context` entries are reported only. The environment is read through a fixed list of
variable names; the user's whole environment never goes into a file.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from detaudit.core.model import RunManifest
from detaudit.digest import spec

DECISIVE_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OMP_DYNAMIC",
    "OMP_SCHEDULE",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_THREADING_LAYER",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
    "PYTHONHASHSEED",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDNN_DETERMINISTIC",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NVLS_ENABLE",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "TORCHINDUCTOR_DETERMINISTIC",
    "TORCH_COMPILE_DISABLE",
    "WORLD_SIZE",
)
"""Variables that choose algorithms, instruction sets or orders of reduction."""

CONTEXT_VARIABLES = (
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
    "MALLOC_ARENA_MAX",
    "LD_PRELOAD",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_LAUNCH_BLOCKING",
    "RANK",
    "LOCAL_RANK",
)
"""Variables that move timing or memory, hence races, but decide no bit of a correct program."""


def base_manifest(environ: Mapping[str, str], argv: Iterable[str]) -> RunManifest:
    """The part of a manifest that needs no torch: command, interpreter, machine, variables."""
    decisive: dict[str, object] = {
        "command": list(argv),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "byteorder": sys.byteorder,
        "digest": spec.VERSION,
        **{f"env.{name}": environ[name] for name in DECISIVE_VARIABLES if name in environ},
    }
    context: dict[str, object] = {
        "system": platform.system(),
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        **{f"env.{name}": environ[name] for name in CONTEXT_VARIABLES if name in environ},
    }
    return RunManifest(decisive, context)


def cpu_model(path: str = "/proc/cpuinfo") -> str:
    """The processor's own name, empty where the system does not tell."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("model name", "Hardware", "CPU part")):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def git_commit(start: Path) -> str:
    """The commit checked out around `start`, read from git's own files; empty outside a repository. Whether the work
    tree is clean is told by the code digest, not here."""
    for folder in (start, *start.parents):
        git = folder / ".git"
        try:
            if git.is_file():  # a linked work tree or a submodule
                git = folder / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
            head = (git / "HEAD").read_text(encoding="utf-8").strip()
        except OSError:
            continue
        return _resolve_ref(git, head.removeprefix("ref:").strip()) if head.startswith("ref:") else head
    return ""


def _resolve_ref(git: Path, name: str) -> str:
    common = git / "commondir"
    try:
        shared = git / common.read_text(encoding="utf-8").strip() if common.exists() else git
        if (shared / name).exists():
            return (shared / name).read_text(encoding="utf-8").strip()
        packed = (shared / "packed-refs").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found = (line.split(" ", 1)[0] for line in packed if line.endswith(f" {name}"))
    return next(found, "")


def code_digest(files: Iterable[Path], root: Path) -> tuple[str, int]:
    """SHA-256 over (path relative to `root`, content) of each file in sorted order, and the number of files."""
    whole, count = hashlib.sha256(), 0
    for file in sorted(set(files)):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        name = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
        whole.update(f"{name.as_posix()}\0{len(content)}\0".encode() + content)
        count += 1
    return whole.hexdigest(), count


def differences(left: RunManifest, right: RunManifest) -> list[str]:
    """One line for each decisive entry that differs, with both values; empty when the runs are comparable."""
    lines = []
    for key in sorted({*left.decisive, *right.decisive}):
        a, b = left.decisive.get(key), right.decisive.get(key)
        if a != b:
            lines.append(f"{key}: A {_show(a)}, B {_show(b)}")
    return lines


def _show(value: object) -> str:
    if value is None:
        return "not set"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
