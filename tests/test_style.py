"""What STYLE.md asks for and a machine can check."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "detaudit", "kernels", "scripts", "tests", "docs"}
TOP |= {"benchmarks", ".ci", ".gitignore"}
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common"}
UNFINISHED = re.compile(r"\b(" + "|".join(["NotImplemented" + "Error", "TO" + "DO", "FIX" + "ME"]) + r")\b")
SOURCES = sorted((ROOT / "detaudit").rglob("*.py"))
OTHERS = sorted(path for room in ("benchmarks", "scripts", "kernels") for path in (ROOT / room).rglob("*.py"))


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES + OTHERS, ids=name)
def test_module(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400, "a module has at most 400 lines: part it"
    assert ast.get_docstring(ast.parse(text)), "a module begins with a docstring"
    assert not UNFINISHED.search(text), f"unfinished: {UNFINISHED.search(text)}"
    assert not {path.stem, path.parent.name} & VAGUE, "the name says nothing of what is inside"


def test_median_module():
    assert statistics.median(len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES) <= 150


def tracked():
    """The top level as git has it; without git (an unpacked source archive), the directory without hidden entries."""
    try:
        listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} - {"PKG-INFO"}
    return {line.split("/")[0] for line in listed.stdout.splitlines()}


def test_the_top_level_holds_only_what_it_should():
    assert tracked() <= TOP, f"unexpected: {sorted(tracked() - TOP)}"


def test_no_public_function_of_the_library_ends_the_process():
    """Library code never exits (STYLE, Errors); `cli` turns errors into exit codes in one place."""
    for path in SOURCES:
        room = path.relative_to(ROOT / "detaudit").parts[0]
        if room in ("cli", "workloads", "__main__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = (getattr(node.func.value, "id", ""), node.func.attr)
                assert called != ("sys", "exit"), f"{name(path)}:{node.lineno}"
