"""What all tests share: a fixed terminal, no DETAUDIT_* from outside, golden texts, GPU tests skipped with a reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No test asserts a wall-clock time, not even through hypothesis.
settings.register_profile("detaudit", deadline=None)
settings.load_profile("detaudit")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    group = parser.getgroup("golden texts (tests/golden)")
    group.addoption("--golden-update", action="store_true", help="rewrite the golden texts that differ")
    group.addoption("--golden-new", action="store_true", help="write golden texts that do not exist yet")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """GPU tests stay in the count: skipped, with the reason."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def fixed_surroundings(monkeypatch):
    """80 columns, no colour, and no recorder around the tests."""
    for name in [name for name in os.environ if name.startswith("DETAUDIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def golden(request):
    """Compare a text with tests/golden/NAME. A text that is new or differs fails, whether or not it was rewritten."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        wanted = path.read_text(encoding="utf-8") if path.exists() else None
        rewrite = request.config.getoption("--golden-new" if wanted is None else "--golden-update")
        if text != wanted and rewrite:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert wanted is not None, f"tests/golden/{name} does not exist; pytest --golden-new writes it"
        assert text == wanted

    return compare
