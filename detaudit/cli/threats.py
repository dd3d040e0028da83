"""What threatens determinism in given surroundings, each with its cure. Pure rules over a snapshot.

`find_threats` runs every rule of `RULES` in order. A rule that does not apply yields nothing. Sources: PyTorch's
reproducibility notes (https://docs.pytorch.org/docs/stable/notes/randomness.html), pytorch issues 88718 (thread
counts), 18412 (CPU dispatch), 15359 and 109856 (cuBLAS workspace), 193317 (memory fill as confounder).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from detaudit.core import env

BETWEEN_RUNS = "between runs"
BETWEEN_MACHINES = "between machines"


@dataclass(frozen=True)
class TorchState:
    """What a fresh torch says of itself. `cuda` is the toolkit version it was built for, empty for none."""

    threads: int = 1
    cuda: str = ""
    cuda_devices: int = 0
    deterministic: bool = False
    fill_uninitialized_memory: bool = True
    cudnn_benchmark: bool = False
    cudnn_tf32: bool = True
    matmul_precision: str = "highest"
    cpu_capability: str = ""


@dataclass(frozen=True)
class Surroundings:
    """Where a training run would start. `packages` maps distribution names to versions; `torch` is None without it."""

    environ: Mapping[str, str]
    cpus: int
    machine: str
    packages: Mapping[str, str]
    torch: TorchState | None


@dataclass(frozen=True)
class Threat:
    """One finding. `scope` says where bits may differ: between runs on this machine, or only between machines."""

    name: str
    scope: str
    seen: str
    threat: str
    cure: str


def find_threats(around: Surroundings) -> list[Threat]:
    return [threat for rule in RULES for threat in rule(around)]


def _unknown_variables(around: Surroundings) -> Iterator[Threat]:
    for name in sorted(around.environ):
        if name.startswith(env.PREFIX) and name not in env.TABLE:
            yield Threat(
                name,
                BETWEEN_RUNS,
                "is set and detaudit knows no such variable",
                "every verb that records refuses it",
                f"unset {name}; `detaudit show env` lists the legal names",
            )


def _packages(around: Surroundings) -> Iterator[Threat]:
    if around.torch is None:
        yield Threat("torch", BETWEEN_RUNS, "cannot be imported", "nothing can be recorded", "pip install torch")
    version = around.packages.get("xxhash", "")
    if _major(version) < 4:
        yield Threat(
            "xxhash",
            BETWEEN_RUNS,
            f"version {version or 'not found'}",
            "detaudit needs xxhash 4, whose digests are its measured speed",
            "pip install 'xxhash>=4'",
        )


def _cupy(around: Surroundings) -> Iterator[Threat]:
    wheels = [name for name in around.packages if name.startswith("cupy")]
    if len(wheels) > 1:
        yield Threat(
            "cupy",
            BETWEEN_RUNS,
            f"several wheels are installed: {', '.join(wheels)}",
            "they overwrite each other's files and misbehave",
            f"pip uninstall {' '.join(wheels)}, then install the one that fits torch's CUDA",
        )
    cuda = around.torch.cuda.split(".")[0] if around.torch else ""
    for wheel in wheels:
        if cuda and wheel.startswith("cupy-cuda") and wheel != f"cupy-cuda{cuda}x":
            yield Threat(
                "cupy",
                BETWEEN_RUNS,
                f"{wheel} beside a torch built for CUDA {cuda}",
                "kernels run against another CUDA runtime than torch's",
                f"pip uninstall {wheel}, then pip install cupy-cuda{cuda}x",
            )


def _threads(around: Surroundings) -> Iterator[Threat]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    given = {name: around.environ[name] for name in names if around.environ.get(name)}
    threads = around.torch.threads if around.torch else around.cpus
    if len(set(given.values())) > 1:
        yield Threat(
            "threads",
            BETWEEN_MACHINES,
            ", ".join(f"{name}={value}" for name, value in given.items()),
            "parts of one step run on different thread counts, and which part follows which is a build detail",
            "set both to the same number",
        )
    elif "OMP_NUM_THREADS" not in given:
        yield Threat(
            "threads",
            BETWEEN_MACHINES,
            f"OMP_NUM_THREADS is not set; torch takes {threads} threads from the machine's cores or its quota",
            "sums, LayerNorm, BatchNorm and convolution gradients change bits with the number of threads",
            f"export OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads}",
        )
    if around.environ.get("OMP_DYNAMIC", "").lower() in ("true", "1"):
        yield Threat(
            "OMP_DYNAMIC",
            BETWEEN_RUNS,
            "is on",
            "the runtime may choose another number of threads in each region",
            "export OMP_DYNAMIC=false",
        )


def _hash_seed(around: Surroundings) -> Iterator[Threat]:
    value = around.environ.get("PYTHONHASHSEED", "")
    if value in ("", "random"):
        yield Threat(
            "PYTHONHASHSEED",
            BETWEEN_RUNS,
            f"is {value or 'not set'}",
            "sets of strings iterate in another order in every run: labels, vocabularies, file lists",
            "sort before iterating; or export PYTHONHASHSEED=0 before Python starts",
        )


def _cpu_dispatch(around: Surroundings) -> Iterator[Threat]:
    if around.machine not in ("x86_64", "AMD64"):
        return
    if not around.environ.get("MKL_CBWR"):
        yield Threat(
            "MKL_CBWR",
            BETWEEN_MACHINES,
            "is not set",
            "MKL picks kernels by processor and by memory alignment",
            "export MKL_CBWR=AUTO,STRICT for one machine, MKL_CBWR=COMPATIBLE across machines",
        )
    if not around.environ.get("ATEN_CPU_CAPABILITY"):
        seen = f"; torch uses {around.torch.cpu_capability} here" if around.torch else ""
        yield Threat(
            "ATEN_CPU_CAPABILITY",
            BETWEEN_MACHINES,
            f"is not set{seen}",
            "another processor gets other vector kernels, hence other bits",
            "export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2, together with MKL_CBWR",
        )


def _deterministic_algorithms(around: Surroundings) -> Iterator[Threat]:
    state = around.torch
    if state is None:
        return
    if not state.deterministic:
        yield Threat(
            "deterministic algorithms",
            BETWEEN_RUNS,
            "are off in a fresh process; only the training script can turn them on",
            "operations with a nondeterministic kernel use it",
            "torch.use_deterministic_algorithms(True) at the top of the script (warn_only=True is weaker)",
        )
        if state.threads >= 2:
            yield Threat(
                "index_put on the CPU",
                BETWEEN_RUNS,
                f"{state.threads} threads",
                "the backward of x[idx], index_put_, put_ and index_copy_ race from about 32,768 elements on",
                "use index_select or embedding, torch.use_deterministic_algorithms(True), or one thread",
            )
    if state.fill_uninitialized_memory:
        yield Threat(
            "fill_uninitialized_memory",
            BETWEEN_RUNS,
            "is on, and acts with deterministic algorithms only",
            "a read of uninitialised memory vanishes with the flag and looks like a cured kernel",
            "to tell the two apart, set torch.utils.deterministic.fill_uninitialized_memory = False",
        )


def _cuda(around: Surroundings) -> Iterator[Threat]:
    state = around.torch
    if state is None or not state.cuda_devices:
        return
    workspace = around.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    if workspace not in (":4096:8", ":16:8"):
        yield Threat(
            "CUBLAS_WORKSPACE_CONFIG",
            BETWEEN_RUNS,
            f"is {workspace or 'not set'}",
            "cuBLAS may pick another workspace, hence another order of addition, in each run",
            "export CUBLAS_WORKSPACE_CONFIG=:4096:8 before the process starts",
        )
    if state.cudnn_benchmark:
        yield Threat(
            "cudnn.benchmark",
            BETWEEN_RUNS,
            "is on",
            "the fastest convolution is measured anew in each process, and may be another one",
            "torch.backends.cudnn.benchmark = False, torch.backends.cudnn.deterministic = True",
        )
    if state.cudnn_tf32 or state.matmul_precision != "highest":
        yield Threat(
            "TF32",
            BETWEEN_MACHINES,
            f"cudnn.allow_tf32={state.cudnn_tf32}, float32 matmul precision {state.matmul_precision}",
            "products are rounded to 10 bits on GPUs that have TF32 and not on others",
            "torch.backends.cudnn.allow_tf32 = False; torch.set_float32_matmul_precision('highest')",
        )


def _major(version: str) -> int:
    head = version.split(".")[0]
    return int(head) if head.isdigit() else 0


RULES: tuple[Callable[[Surroundings], Iterator[Threat]], ...] = (
    _unknown_variables,
    _packages,
    _cupy,
    _hash_seed,
    _deterministic_algorithms,
    _cuda,
    _threads,
    _cpu_dispatch,
)
