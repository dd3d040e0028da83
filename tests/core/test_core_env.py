"""The table of DETAUDIT_* variables: unknown names and illegal values are errors; `write` and `read` are inverse."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detaudit.core.axes import AXES
from detaudit.core.env import (
    FIRST_DIVERGENCE,
    PREFIX,
    TABLE,
    Settings,
    parse_globs,
    parse_steps,
    read,
    refuse_first_divergence,
    with_dump,
    write,
)
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
    dump=st.booleans(),
    dump_steps=st.sets(st.integers(FIRST_DIVERGENCE, 10**9), min_size=1, max_size=4).map(lambda s: tuple(sorted(s))),
    dump_leaves=st.lists(globs, max_size=3).map(tuple),
    dump_directory=st.text(max_size=10),
    dump_max_bytes=st.integers(1, 10**15),
    toggle=st.sampled_from(["", *AXES]),
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
ILLEGAL += [("DETAUDIT_DUMP", text) for text in ("yes", "2", "")]
ILLEGAL += [("DETAUDIT_DUMP_STEPS", text) for text in ("", "0,", "-1", "0-2", "last", "1.0", "first_divergence")]
ILLEGAL += [("DETAUDIT_DUMP_MAX_BYTES", text) for text in ("0", "-5", "1G", "")]
ILLEGAL += [("DETAUDIT_TOGGLE", text) for text in ("threads", "plain", "threads-1,entropy")]
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


@pytest.mark.parametrize(
    ("text", "steps"),
    [("0,1,2", (0, 1, 2)), ("7, 3,7", (3, 7)), ("first-divergence", (-1,)), ("2,first-divergence,0", (-1, 0, 2))],
)
def test_steps(text, steps):
    assert parse_steps(text) == steps


class TestDump:
    def test_comes_from_the_environment_and_nothing_else_does(self):
        environ = {"DETAUDIT_DUMP": "1", "DETAUDIT_DUMP_STEPS": "5", "DETAUDIT_STEPS": "9", "HOME": "/"}
        found = with_dump(Settings("out", steps=3), environ)
        assert found == Settings("out", steps=3, dump=True, dump_steps=(5,))

    def test_the_runs_of_an_audit_share_no_directory(self):
        environ = {"DETAUDIT_DUMP": "1", "DETAUDIT_DUMP_DIR": "/some where"}
        places = [with_dump(Settings(f"out/{run}"), environ, run).dump_place for run in "AB"]
        assert places == ["/some where/A", "/some where/B"]
        assert with_dump(Settings("out/A"), {"DETAUDIT_DUMP": "1"}, "A").dump_place == "out/A/dump"

    def test_an_unknown_name_is_an_error_here_too(self):
        with pytest.raises(UsageError, match="unknown environment variable DETAUDIT_DUMP_STEP;"):
            with_dump(Settings(), {"DETAUDIT_DUMP_STEP": "1"})

    def test_one_run_cannot_know_where_two_differ(self):
        refuse_first_divergence(Settings(dump=False, dump_steps=(FIRST_DIVERGENCE,)))
        refuse_first_divergence(Settings(dump=True))
        with pytest.raises(UsageError, match="takes two runs"):
            refuse_first_divergence(Settings(dump=True, dump_steps=(FIRST_DIVERGENCE, 3)))


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().every = 2  # type: ignore[misc]
