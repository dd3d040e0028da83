"""One run of a command: its environment, its output, its end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from detaudit.compare.evidence import open_run
from detaudit.compare.runs import why_unusable
from detaudit.core import env
from detaudit.core.errors import UsageError
from detaudit.launch import child

FAKE = str(Path(__file__).parents[1] / "fake_training.py")
SHOW_ENVIRONMENT = "import os, sys, json; print(json.dumps(dict(os.environ))); sys.stderr.write('to stderr')"


def run(directory, *command, environ=None, **settings):
    wanted = env.Settings(str(directory), **settings)
    return child.run([sys.executable, *command], "A", wanted, os.environ if environ is None else environ)


def seen(directory):
    import json

    return json.loads((directory / "stdout.txt").read_text())


def test_the_environment_is_the_users_plus_the_recorder(tmp_path):
    environ = {**os.environ, "PYTHONPATH": "/user/path", "MINE": "1"}
    environ.pop("PYTHONHASHSEED", None)
    run(tmp_path, "-c", SHOW_ENVIRONMENT, environ=environ, every=3, leaves=("loss", "!rng.*"))
    found = seen(tmp_path)
    assert found["PYTHONPATH"].split(os.pathsep) == [str(child.AUTOLOAD), "/user/path"]
    assert found["MINE"] == "1" and "PYTHONHASHSEED" not in found
    ours = {key: value for key, value in found.items() if key.startswith("DETAUDIT_")}
    assert env.read(ours) == env.Settings(str(tmp_path), 3, 0, False, ("loss", "!rng.*"))


def test_a_setting_from_outside_does_not_leak_in(tmp_path):
    run(tmp_path, "-c", SHOW_ENVIRONMENT, environ={**os.environ, "DETAUDIT_EVERY": "9"})
    assert seen(tmp_path)["DETAUDIT_EVERY"] == "1"


def test_no_empty_entry_in_pythonpath(tmp_path):
    """An empty entry would be the working directory: modules there would shadow the user's own."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    assert child.child_environment(env.Settings(str(tmp_path)), environ)["PYTHONPATH"] == str(child.AUTOLOAD)


def test_output_and_status_are_kept(tmp_path):
    evidence = run(tmp_path, "-c", "import sys; print('out'); sys.exit('the last words')")
    assert evidence.report.exit_status == 1 and evidence.report.wall_seconds > 0
    assert (tmp_path / "stdout.txt").read_text() == "out\n"
    assert child.tail_of(tmp_path / "stderr.txt") == "the last words"
    assert open_run(tmp_path, "A").report.exit_status == 1


def test_a_signal_is_a_negative_status(tmp_path):
    evidence = run(tmp_path, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert evidence.report.exit_status == -9


def test_stdin_is_empty(tmp_path):
    run(tmp_path, "-c", "import sys; print(len(sys.stdin.read()))")
    assert (tmp_path / "stdout.txt").read_text() == "0\n"


def test_trails_are_collected(tmp_path):
    evidence = run(tmp_path, FAKE, "clean")
    assert list(evidence.trails) == ["main"] and evidence.missing_reason == "" and evidence.defects == ()
    assert (evidence.report.last_step, evidence.report.outcome) == (9, "complete")


def test_equal_stdout_has_an_equal_digest(tmp_path):
    texts = ("x", "x", "y")
    first, again, other = (
        run(tmp_path / str(i), "-c", f"print('{text}')").stdout_digest for i, text in enumerate(texts)
    )
    assert first == again != other


def test_why_nothing_was_recorded(tmp_path):
    assert run(tmp_path / "1", FAKE, "silent").missing_reason == child.NEVER_TRAINED
    assert f"run `{sys.executable} -m pip install" in run(tmp_path / "2", "-I", FAKE, "unloaded").missing_reason
    other = child.run(["true"], "A", env.Settings(str(tmp_path / "3")), os.environ)
    assert "run `python -m pip install detaudit`" in other.missing_reason


def test_the_recorders_own_error_is_the_reason(tmp_path):
    code = "import os; open(os.environ['DETAUDIT_DIR'] + '/autoload-error.txt', 'w').write('no torch here')"
    assert run(tmp_path, "-c", code).missing_reason == "no torch here"


def test_an_unreadable_trail_is_evidence_of_nothing(tmp_path):
    evidence = run(tmp_path, FAKE, "garbage")
    assert not evidence.trails and "main.trail" in evidence.defects[0]
    assert open_run_defects(tmp_path) == evidence.defects


def open_run_defects(directory):
    """What a later `diff` would read of them; the unreadable trail itself is an error there."""
    for file in directory.glob("*.trail"):
        file.unlink()
    return open_run(directory, "A").defects


def test_a_recorder_that_gave_up_is_a_defect_even_beside_whole_trails(tmp_path):
    """A rank that fails before its first step leaves no trail in either run; the other ranks look sound."""
    code = "import os; open(os.environ['DETAUDIT_DIR'] + '/recorder-error-1.txt', 'w').write('trace\\nKeyError: 7')"
    (tmp_path / "wrapped.py").write_text(f"{code}\nimport runpy; runpy.run_path({FAKE!r}, run_name='__main__')")
    evidence = run(tmp_path / "A", tmp_path / "wrapped.py")
    assert list(evidence.trails) == ["main"] and "a recorder failed (KeyError: 7)" in evidence.defects[0]
    assert "was not recorded whole" in why_unusable(open_run(tmp_path / "A", "A"))


def test_a_helper_process_without_detaudit_is_a_remark(tmp_path):
    code = "import os; open(os.environ['DETAUDIT_DIR'] + '/autoload-error.txt', 'w').write('no torch here')"
    (tmp_path / "wrapped.py").write_text(f"{code}\nimport runpy; runpy.run_path({FAKE!r}, run_name='__main__')")
    evidence = run(tmp_path / "A", tmp_path / "wrapped.py")
    assert evidence.remarks == ("no torch here",) and not evidence.defects and not why_unusable(evidence)


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="no-such-program cannot be run: No such file"):
        child.run(["no-such-program"], "A", env.Settings(str(tmp_path)), os.environ)


class TestOverhead:
    def test_the_slowest_process_counts(self, tmp_path):
        (tmp_path / "rank0.overhead.json").write_text('{"seconds": 1.0}')
        (tmp_path / "rank1.overhead.json").write_text('{"seconds": 3.0}')
        assert child.recorder_share(tmp_path, 10.0) == pytest.approx(0.3)

    @pytest.mark.parametrize("text", ["", "{}", '{"seconds": "fast"}'])
    def test_no_figure(self, tmp_path, text):
        (tmp_path / "rank0.overhead.json").write_text(text)
        assert child.recorder_share(tmp_path, 10.0) is None


def test_tail_of(tmp_path):
    path = tmp_path / "stderr.txt"
    path.write_text("\n".join(map(str, range(30))))
    assert child.tail_of(path, 2) == "28\n29" and child.tail_of(tmp_path / "gone") == ""
