"""What threatens determinism, from surroundings made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from detaudit import cli
from detaudit.cli.threats import BETWEEN_MACHINES, BETWEEN_RUNS, Surroundings, TorchState, find_threats

QUIET = Surroundings(
    environ={
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "PYTHONHASHSEED": "0",
        "MKL_CBWR": "COMPATIBLE",
        "ATEN_CPU_CAPABILITY": "avx2",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    },
    cpus=8,
    machine="x86_64",
    packages={"torch": "2.13.0", "xxhash": "4.1.0", "cupy-cuda12x": "14.0"},
    torch=TorchState(2, "12.8", 1, True, False, False, False, "highest", "AVX2"),
)


def changed(part, value):
    """QUIET with one thing changed: a variable (None unsets it), a package, a field of torch, or another field."""
    if part.isupper():
        environ = {**QUIET.environ, part: value}
        return replace(QUIET, environ={name: text for name, text in environ.items() if text is not None})
    if part in TorchState.__dataclass_fields__:
        return replace(QUIET, torch=replace(QUIET.torch, **{part: value}))
    if part == "torch":
        return replace(QUIET, torch=value)
    return replace(QUIET, packages={**QUIET.packages, part: value})


def test_quiet_surroundings():
    assert find_threats(QUIET) == []


@pytest.mark.parametrize(
    ("part", "value", "names", "words"),
    [
        ("OMP_NUM_THREADS", None, ["threads"], "not set; torch takes 2 threads"),
        ("OMP_NUM_THREADS", "4", ["threads"], "OMP_NUM_THREADS=4, MKL_NUM_THREADS=2"),
        ("OMP_DYNAMIC", "TRUE", ["OMP_DYNAMIC"], "is on"),
        ("PYTHONHASHSEED", None, ["PYTHONHASHSEED"], "not set"),
        ("PYTHONHASHSEED", "random", ["PYTHONHASHSEED"], "is random"),
        ("MKL_CBWR", None, ["MKL_CBWR"], "not set"),
        ("ATEN_CPU_CAPABILITY", None, ["ATEN_CPU_CAPABILITY"], "AVX2"),
        ("CUBLAS_WORKSPACE_CONFIG", None, ["CUBLAS_WORKSPACE_CONFIG"], "not set"),
        ("CUBLAS_WORKSPACE_CONFIG", ":0:0", ["CUBLAS_WORKSPACE_CONFIG"], "is :0:0"),
        ("DETAUDIT_EVRY", "2", ["DETAUDIT_EVRY"], "no such variable"),
        ("deterministic", False, ["deterministic algorithms", "index_put on the CPU"], "off"),
        ("fill_uninitialized_memory", True, ["fill_uninitialized_memory"], "is on"),
        ("cudnn_benchmark", True, ["cudnn.benchmark"], "is on"),
        ("cudnn_tf32", True, ["TF32"], "cudnn.allow_tf32=True"),
        ("matmul_precision", "high", ["TF32"], "precision high"),
        ("cuda", "13.0", ["cupy"], "cupy-cuda12x beside a torch built for CUDA 13"),
        ("cupy-cuda13x", "14.0", ["cupy", "cupy"], "several wheels are installed"),
        ("xxhash", "3.6.0", ["xxhash"], "version 3.6.0"),
        ("torch", None, ["torch"], "cannot be imported"),
    ],
)
def test_each_threat_alone(part, value, names, words):
    found = find_threats(changed(part, value))
    assert [threat.name for threat in found] == names and words in found[0].seen
    assert all(threat.cure and threat.scope in (BETWEEN_RUNS, BETWEEN_MACHINES) for threat in found)


def test_one_thread_does_not_race():
    state = replace(QUIET.torch, threads=1, deterministic=False)
    assert [threat.name for threat in find_threats(replace(QUIET, torch=state))] == ["deterministic algorithms"]


def test_no_gpu_no_gpu_threat():
    noisy = TorchState(2, "", 0, True, False, True, True, "medium", "AVX2")
    environ = {name: value for name, value in QUIET.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    assert find_threats(replace(QUIET, torch=noisy, environ=environ, packages={"xxhash": "4.0"})) == []


def test_another_processor_has_no_mkl():
    assert find_threats(replace(changed("MKL_CBWR", None), machine="aarch64")) == []


def test_the_verb(capsys, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "torch 2." in out and "PYTHONHASHSEED: is not set\n" in out and "cure: " in out
    assert cli.main(["doctor", "--json"]) == 0
    text = capsys.readouterr().out
    assert any(threat["name"] == "PYTHONHASHSEED" for threat in json.loads(text)["threats"])
    assert "hunter2" not in text + out
