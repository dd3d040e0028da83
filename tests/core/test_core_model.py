"""Errors carry their exit codes; records are frozen, comparable and hashable where a room needs it."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import subprocess
import sys

import pytest

from detaudit.core import errors, model

CODES = {
    "DetauditError": 2,
    "UsageError": 2,
    "UnreadableError": 2,
    "NotATrailError": 2,
    "TrailVersionError": 2,
    "TrailCorruptError": 2,
    "UnsupportedLeafError": 2,
    "InconclusiveError": 3,
    "NotComparableError": 3,
}
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == errors.__name__
}
RECORDS = [value for value in vars(model).values() if dataclasses.is_dataclass(value)]


def test_every_error_has_its_exit_code():
    assert {name: value.exit_code for name, value in CLASSES.items()} == CODES


def test_errors_for_the_user_are_value_errors():
    for value in CLASSES.values():
        assert issubclass(value, errors.DetauditError) and issubclass(value, ValueError)


def test_exit_codes_of_the_contract():
    codes = errors.EXIT_CLEAN, errors.EXIT_DIVERGED, errors.EXIT_USAGE, errors.EXIT_INCONCLUSIVE
    assert codes == (0, 1, 2, 3)
    assert {str(outcome): outcome.exit_code for outcome in model.Outcome} == {
        "clean": 0,
        "diverged": 1,
        "inconclusive": 3,
    }


def test_an_unsupported_leaf_carries_its_reason():
    error = errors.UnsupportedLeafError("a meta tensor has no data")
    assert error.reason == str(error) == "a meta tensor has no data"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_are_frozen_and_documented(record):
    assert record.__dataclass_params__.frozen
    assert record.__doc__ and not record.__doc__.startswith(f"{record.__name__}(")


def test_setting_a_field_is_refused():
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.Leaf("loss").name = "other"  # type: ignore[misc]


def test_layouts_are_equal_by_value_and_usable_as_keys():
    def layout(**changes):
        return model.Layout((model.Leaf("w", "float32", (2,)), model.Leaf("loss")), **changes)

    assert layout() == layout() and hash(layout()) == hash(layout())
    assert layout() != layout(optimizer="opt") != layout(kind=model.StepKind.SKIPPED)
    assert layout().names == ("w", "loss")


def test_kinds_are_words():
    for kind in (model.StepKind, model.DivergenceKind, model.Outcome):
        assert issubclass(kind, enum.StrEnum)
        assert [str(member) for member in kind] == [member.name.lower() for member in kind]


def test_core_loads_nothing_but_the_standard_library():
    code = "import sys, detaudit.core.env, detaudit.core.errors, detaudit.core.model, detaudit.core.names\n"
    code += "print(sorted(n for n in sys.modules if n.split('.')[0] in ('torch', 'numpy', 'xxhash', 'rich')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_importing_the_package_loads_no_torch():
    code = "import sys, detaudit; print(detaudit.__version__, 'torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.modules['detaudit'].__version__} False False\n"
