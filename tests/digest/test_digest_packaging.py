"""The CUDA sources travel in the wheel, where `kernel_path` of an installed detaudit looks for them."""

import zipfile
from pathlib import Path

import pytest

from detaudit.core.errors import UnreadableError
from detaudit.digest import kernels

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "kernels").glob("*.cu"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel of this checkout, unpacked."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling builds the wheel")
    directory = tmp_path_factory.mktemp("wheel")
    (built,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(directory), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        archive.extractall(directory / "site")
    return directory / "site"


def test_the_wheel_holds_every_kernel_unchanged(installed):
    assert SOURCES
    for source in SOURCES:
        assert (installed / "detaudit" / "kernels" / source.name).read_bytes() == source.read_bytes()


def test_an_installation_finds_its_own(installed, monkeypatch):
    module = installed / "detaudit" / "digest" / "kernels.py"
    assert module.is_file()
    places = tuple(module.parents[depth] / "kernels" for depth in (1, 2))
    monkeypatch.setattr(kernels, "PLACES", places)
    assert kernels.kernel_path(SOURCES[0].stem) == installed / "detaudit" / "kernels" / SOURCES[0].name


def test_a_checkout_finds_its_own():
    assert [kernels.kernel_path(source.stem) for source in SOURCES] == SOURCES


def test_a_missing_kernel_is_named():
    with pytest.raises(UnreadableError, match=r"no_such_kernel\.cu is missing"):
        kernels.kernel_path("no_such_kernel")
