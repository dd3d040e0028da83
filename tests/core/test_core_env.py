"""The table of DETAUDIT_* variables: unknown names and illegal values are errors; `write` and `read` are inverse."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detaudit.core.env import PREFIX, TABLE, Settings, parse_globs, read, write
from detaudit.core.errors import UsageError

globs = st.text(st.characters(codec="utf-8", exclude_characters=","), min_size=1, max_size=8)
globs = globs.map(str.strip).filter(bool)
settings_values = st.builds(
    Settings,
    directory=st.text(max_size=10),
    every=st.integers(1, 10**6),
    steps=st.integers(0, 10**9),
    stats=st.booleans(),
    leaves=st.lists(globs, max_size=3).map(tuple),
    trace=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda pair: tuple(sorted(pair))),
    trace_reruns=st.integers(0, 99),
)


@given(settings_values)
def test_write_and_read_are_inverse(settings):
    assert read(write(settings)) == settings


def test_nothing_set_is_the_default_and_inactive():
    assert read({}) == Settings()
    assert not Settings().active
    assert Settings(directory="out").active


def test_every_setting_has_a_row_and_is_written():
    assert set(write(Settings())) == set(TABLE)
    assert len(TABLE) == len(dataclasses.fields(Settings))
    for row in TABLE.values():
        assert row.meaning and row.legal
        row.parse(row.default)


def test_other_variables_are_not_our_business():
    assert read({"PATH": "/bin", "DETAUDITOR": "x", "detaudit_dir": "y"}) == Settings()


@pytest.mark.parametrize("name", ["DETAUDIT_DIRECTORY", "DETAUDIT_", "DETAUDIT_dir", "DETAUDIT_STAT"])
def test_an_unknown_name_is_an_error_with_the_legal_names(name):
    with pytest.raises(UsageError) as caught:
        read({name: "1"})
    assert f"unknown environment variable {name};" in str(caught.value)
    for legal in TABLE:
        assert legal.startswith(PREFIX) and legal in str(caught.value)


ILLEGAL = [("DETAUDIT_EVERY", text) for text in ("0", "-1", "", "two", "1.5")]
ILLEGAL += [("DETAUDIT_STEPS", text) for text in ("-1", "many", "")]
ILLEGAL += [("DETAUDIT_TRACE", text) for text in ("3", "5:4", "-1:2", "a:b", "1:2:3")]
ILLEGAL += [("DETAUDIT_TRACE_RERUNS", text) for text in ("-1", "")]
ILLEGAL += [("DETAUDIT_STATS", text) for text in ("yes", "2", "True", "")]


@pytest.mark.parametrize(("name", "text"), ILLEGAL)
def test_an_illegal_value_is_an_error_with_what_is_legal(name, text):
    with pytest.raises(UsageError) as caught:
        read({name: text})
    assert str(caught.value) == f"{name}={text!r} is not legal; it takes {TABLE[name].legal}"
    assert caught.value.exit_code == 2


def test_globs():
    assert parse_globs(" param.*, ,!act.* ,") == ("param.*", "!act.*")
    assert parse_globs("") == ()


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().every = 2  # type: ignore[misc]
