"""The house of DESIGN section 2: a room imports only rooms below it, and a torch-free room loads no torch.

Both are checked from what is there: a room that does not exist yet is absent, an unknown one is an error.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "detaudit"

LEVELS = [
    {"core"},
    {"digest", "trail", "report", "spike"},
    {"compare", "capture", "dump"},
    {"explain"},
    {"launch", "certificate"},
    {"audit"},
    {"trainsect", "ladder", "workloads"},
    {"plugins", "cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
BESIDE = {"trail": {"digest.spec"}}
"""Modules of a room on the same level that a room may import: spec is free of torch."""
ONLY_CORE = {"report", "spike"}
TORCH_FREE_ROOMS = ("core", "trail", "compare", "report", "spike", "launch", "certificate", "audit")
TORCH_FREE_MODULES = (
    "explain.toggles",
    "explain.buffers",
    "explain.weigh",
    "explain.hypotheses",
    "cli.dump",
    "dump.manifest",
    "dump.reader",
    "explain.causes",
    "explain.catalogue",
    "explain.evidence",
    "explain.rates",
    "cli.explain",
    "digest.spec",
    "digest.values",
    "cli",
    "cli.diff",
    "cli.show",
    "cli.verify",
    "cli.export",
    "trainsect.collapse",
    "trainsect.model",
    "trainsect.search",
    "trainsect.chainlog",
    "trainsect.pack",
    "trainsect.run",
    "trainsect.evalsource",
    "trainsect.launch",
)


def sources():
    return sorted(
        path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem not in ("__init__", "__main__")
    )


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def imports(path):
    """Dotted names below `detaudit` that a file imports, anywhere in it, with their lines."""
    package = ["detaudit", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "detaudit" and "." in name:
                yield name.removeprefix("detaudit."), node.lineno


def problem(importer, imported):
    """Why one module may not import another; empty when it may."""
    above, below = importer.split(".")[0], imported.split(".")[0]
    if above == below or below.startswith("__"):
        return ""
    if above in ONLY_CORE and below != "core":
        return f"{above} knows only core"
    if below not in LEVEL:
        return ""  # a name of the package itself, such as detaudit.record
    if any((imported + ".").startswith(allowed + ".") for allowed in BESIDE.get(above, ())):
        return ""
    return "" if LEVEL[below] < LEVEL[above] else f"{above} does not lie above {below}"


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_a_room_imports_only_rooms_below_it(path):
    room = module_name(path).split(".")[0]
    assert room in LEVEL, f"{room} has no place in the house: give it one in tests/test_layers.py and DESIGN"
    wrong = [f"{path.name}:{line}: {why}" for name, line in imports(path) if (why := problem(module_name(path), name))]
    assert not wrong


def test_the_rule_itself():
    assert problem("core.env", "trail.reader") and problem("trail.reader", "compare.first")
    assert problem("report.text", "trail.reader") and problem("spike.detect", "digest.spec")
    assert problem("trail.manifest", "digest.host") and not problem("trail.manifest", "digest.spec.VERSION")
    assert problem("digest.host", "trail.frames") and problem("capture.session", "compare.first")
    assert not problem("cli.check", "audit.run") and not problem("audit", "launch.spawn")
    assert problem("capture.install", "dump.gate") and problem("dump.writer", "compare.tensors")
    assert problem("launch.spawn", "audit") and problem("workloads.per_rl", "cli.main")


def test_relative_imports_are_seen(tmp_path):
    path = PACKAGE / "trail" / "export.py"
    assert ("trail.reader.TrailReader", "trail") in {(name, name.split(".")[0]) for name, _ in imports(path)}


def torch_free():
    names = []
    for path in sources():
        name = module_name(path)
        if name.split(".")[0] in TORCH_FREE_ROOMS or name in TORCH_FREE_MODULES:
            names.append(f"detaudit.{name}")
    return names


def test_no_torch_free_room_loads_torch():
    """All of them in one process: any one that loads torch shows, and the message names the first."""
    code = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} loads torch")
"""
    done = subprocess.run([sys.executable, "-c", code, *torch_free()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "detaudit.core.model" in torch_free() and "detaudit.trail.reader" in torch_free()


@pytest.mark.parametrize("room", ["core", "trail", "compare", "report", "launch"])
def test_torch_free_rooms_say_nothing_of_torch(room):
    """Not even inside a function: a lazy import would load it at the first call."""
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names}
            assert "torch" not in roots, f"{path.name}:{node.lineno}"
