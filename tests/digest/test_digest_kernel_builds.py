"""Every kernel compiles for every target, and the PTX that CuPy would load holds no float atomic and no flushing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "kernels").glob("*.cu"))
SOUND = [source for source in SOURCES if not source.stem.endswith("_racy")]
TARGETS = ("sm_75", "sm_80", "sm_90", "sm_100")
FORBIDDEN = re.compile(r"(?<!\w)(?:atom|red)\.[\w.]*f(?:16|32|64)|\.ftz")
"""A word's beginning before `red`: `st.shared.f64` is harmless."""

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc compiles the kernels")


def nvcc(source, *arguments):
    command = ["nvcc", "-ftz=true", "-std=c++17", *arguments, str(source)]  # -ftz=true: CuPy always appends it
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def forbidden(source, folder):
    ptx = folder / f"{source.stem}.ptx"
    nvcc(source, "-arch=sm_90", "-ptx", "-o", str(ptx))
    return FORBIDDEN.findall(ptx.read_text(encoding="utf-8"))


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_it_compiles_without_spills(source, target, tmp_path, record_property):
    told = nvcc(source, f"-arch={target}", "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "kernel.cubin")).stderr
    record_property("registers", re.findall(r"Used (\d+) registers", told))
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
    assert spills and set(spills) == {("0", "0")}, told


@needs_nvcc
@pytest.mark.parametrize("source", SOUND, ids=lambda source: source.stem)
def test_no_float_atomic_and_no_flushing(source, tmp_path):
    assert forbidden(source, tmp_path) == []


@needs_nvcc
@pytest.mark.parametrize("body", ["atomicAdd(x, 1.0f);", "x[0] = x[1] + x[2];", "atomicAdd((double*)x, 1.0);"])
def test_the_ptx_check_can_fail(body, tmp_path):
    source = tmp_path / "bad.cu"
    source.write_text(f'extern "C" __global__ void bad(float* x) {{ {body} }}\n', encoding="utf-8")
    assert forbidden(source, tmp_path)


def test_no_kernel_includes_anything():
    assert SOUND and not [source for source in SOURCES if "#include" in source.read_text(encoding="utf-8")]
