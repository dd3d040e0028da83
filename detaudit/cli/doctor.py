"""The verb `doctor`: what in this environment threatens determinism. Looks here; `threats` knows what it means."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata

from detaudit.cli import options, terminal
from detaudit.cli.threats import Surroundings, Threat, TorchState, find_threats

SCHEMA = "detaudit.doctor/1"
PACKAGES = ("torch", "numpy", "xxhash", "detaudit")


class DoctorVerb:
    """Name what in this environment threatens determinism, each with its cure.

    It looks at a fresh Python: what a training script sets for itself is not seen. Exits 0 whatever it finds: it
    informs, `detaudit check` decides.
    """

    name = "doctor"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        around = look_around()
        threats = find_threats(around)
        if args.json:
            found = [asdict(threat) for threat in threats]
            options.print_json({"schema": SCHEMA, "surroundings": _value(around), "threats": found})
        else:
            terminal.show("\n".join(_lines(around, threats)) + "\n")
        return 0


def look_around() -> Surroundings:
    """The present environment, torch included when it can be imported."""
    return Surroundings(
        environ=dict(os.environ),
        cpus=os.cpu_count() or 1,
        machine=platform.machine(),
        packages=_packages(),
        torch=_torch_state(),
    )


def _packages() -> dict[str, str]:
    """Version by distribution name, for the packages of interest and every CuPy wheel."""
    wheels = {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions() if dist.metadata["Name"]}
    return {name: wheels[name] for name in sorted(wheels) if name in PACKAGES or name.split("-")[0] == "cupy"}


def _torch_state() -> TorchState | None:
    try:
        import torch
    except ImportError:
        return None
    return TorchState(
        threads=torch.get_num_threads(),
        cuda=torch.version.cuda or "",
        cuda_devices=torch.cuda.device_count(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        fill_uninitialized_memory=torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        cudnn_tf32=torch.backends.cudnn.allow_tf32,
        matmul_precision=torch.get_float32_matmul_precision(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
    )


def _value(around: Surroundings) -> dict[str, object]:
    """The surroundings for JSON; of the environment only what detaudit reads, never all of it."""
    return {
        "cpus": around.cpus,
        "machine": around.machine,
        "packages": dict(around.packages),
        "torch": asdict(around.torch) if around.torch else None,
    }


def _lines(around: Surroundings, threats: Sequence[Threat]) -> Iterator[str]:
    yield ", ".join(f"{name} {version}" for name, version in around.packages.items())
    if around.torch:
        state = around.torch
        cuda = f"CUDA {state.cuda}, {state.cuda_devices} devices" if state.cuda else "no CUDA"
        yield f"{around.cpus} CPUs, {state.threads} torch threads, {state.cpu_capability}, {cuda}"
    if not threats:
        yield "nothing here threatens determinism"
    for threat in threats:
        yield ""
        yield f"{threat.name}: {threat.seen}"
        yield f"  threat ({threat.scope}): {threat.threat}"
        yield f"  cure: {threat.cure}"
