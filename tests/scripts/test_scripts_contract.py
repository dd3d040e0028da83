"""The shell scripts: their usage, the environment they choose, and the command they end in. Nothing is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "scripts" / "determinism-check.sh"
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]


@pytest.fixture
def active(tmp_path):
    """An active environment whose `python` answers the import check and otherwise prints how it was called."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        '#!/usr/bin/env bash\n[[ "$1" == -c ]] && exit 0\necho "OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-}"\n'
        'printf "%s\\n" "$@"\nexit 7\n'
    )
    python.chmod(0o755)
    return {**os.environ, "VIRTUAL_ENV": str(tmp_path), "PATH": f"{python.parent}:{os.environ['PATH']}"}


def run(script, *arguments, env=None):
    return subprocess.run([script, *arguments], capture_output=True, text=True, env=env, cwd="/")


def called(done):
    """The words that the stand-in python was called with."""
    return done.stdout.splitlines()[1:]


def fake_runs(active, tmp_path, check, compare=0):
    """Make the stand-in python log each call and exit as told: the path of its log."""
    log = tmp_path / "calls"
    Path(active["VIRTUAL_ENV"], "bin", "python").write_text(
        "#!/usr/bin/env bash\n"
        'case "$1" in\n'
        "  -c) exit 0 ;;\n"
        f'  -m) echo "check dump=${{DETAUDIT_DUMP:-}} steps=${{DETAUDIT_DUMP_STEPS:-}} '
        f'leaves=${{DETAUDIT_DUMP_LEAVES:-}}" >>"{log}"; echo verdict; exit {check} ;;\n'
        f'  *compare-per-state.py) echo "compare $2 $3" >>"{log}"; echo compared; exit {compare} ;;\n'
        "esac\nexit 99\n"
    )
    return log


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_form(script):
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert script.name == "setup.sh" or ("set -euo pipefail" in text and os.access(script, os.X_OK))
    assert not re.search(r"https?://|/home/|/root/|index-url", text), "no host and no path of one machine"
    assert subprocess.run(["bash", "-n", script]).returncode == 0


class TestDeterminismCheck:
    def test_quick_is_the_default(self, active):
        python = f"{active['VIRTUAL_ENV']}/bin/python"
        quick, plain = run(CHECK, "--quick", env=active), run(CHECK, env=active)
        assert quick.stdout == plain.stdout and quick.returncode == 7
        assert quick.stdout.startswith("OMP_WAIT_POLICY=passive\n")
        assert called(quick) == [
            *("-m", "detaudit", "check", "--stats", "--", python, "-m", "detaudit.workloads.per_rl"),
            *("--steps", "200", "--eval-steps", "50", "--batch", "128"),
        ]

    def test_every_option_reaches_its_place(self, active):
        words = called(run(
            CHECK, "--full", "--steps", "7", "--workload", "digits", "--device", "cuda:1", "--inject", "a,late:3:b",
            "--seed", "5", "--leaves", "checksums.*", "--out", "o", "--json", env=active,
        ))  # fmt: skip
        split = words.index("--")
        assert words[3:split] == ["--stats", "--leaves", "checksums.*", "--out", "o", "--json"]
        assert words[split + 3 :] == [
            "detaudit.workloads.digits", "--steps", "7", "--eval-steps", "200", "--batch", "128",
            "--device", "cuda:1", "--inject", "a,late:3:b", "--seed", "5",
        ]  # fmt: skip

    def test_without_debug_dump_nothing_is_dumped(self, active, tmp_path):
        log = fake_runs(active, tmp_path, check=0)
        assert run(CHECK, "--quick", env=active).returncode == 0
        assert log.read_text().splitlines() == ["check dump= steps= leaves="]

    def test_debug_dump_dumps_the_replay_state_and_compares_it(self, active, tmp_path):
        log = fake_runs(active, tmp_path, check=0)
        done = run(CHECK, "--quick", "--debug-dump", "--out", tmp_path / "the out", env=active)
        leaves = "sample_prng walked_tree replay_sample_indices priorities priority_tree".split()
        assert log.read_text().splitlines() == [
            "check dump=1 steps=0,1,2,first-divergence leaves=" + ",".join(f"checksums.{leaf}" for leaf in leaves),
            f"compare {tmp_path}/the out/A {tmp_path}/the out/B",
        ]
        assert done.returncode == 0 and done.stdout == "verdict\ncompared\n"

    def test_more_through_the_environment(self, active, tmp_path):
        log = fake_runs(active, tmp_path, check=0)
        asked = {"DETAUDIT_DUMP_STEPS": "7", "DETAUDIT_DUMP_LEAVES": "loss", "DETAUDIT_DUMP_DIR": "/d d"}
        run(CHECK, "--debug-dump", "--workload", "digits", env=active | asked)
        assert log.read_text().splitlines() == ["check dump=1 steps=7 leaves=loss", "compare /d d/A /d d/B"]

    @pytest.mark.parametrize(
        ("check", "compare", "code", "compared"),
        [
            (0, 0, 0, 1),
            (1, 1, 1, 1),
            (1, 0, 1, 1),
            (0, 3, 3, 1),
            (0, 1, 1, 1),
            (1, 2, 1, 1),
            (2, 0, 2, 0),
            (3, 0, 3, 0),
        ],
    )
    def test_exit_status_with_dumps(self, active, tmp_path, check, compare, code, compared):
        """The check's own, unless that is clean; nothing is compared where no pair was made."""
        log = fake_runs(active, tmp_path, check, compare)
        assert run(CHECK, "--debug-dump", env=active).returncode == code
        assert log.read_text().count("compare ") == compared

    @pytest.mark.parametrize(("compare", "comparisons"), [(0, 2), (1, 1)])
    def test_a_pair_that_parts_later_is_compared_there(self, active, tmp_path, compare, comparisons):
        log = fake_runs(active, tmp_path, check=1, compare=compare)
        (tmp_path / "out" / "first-divergence").mkdir(parents=True)
        done = run(CHECK, "--debug-dump", "--out", tmp_path / "out", env=active)
        assert done.returncode == 1 and log.read_text().count("compare ") == comparisons
        assert ("the pair again" in done.stdout) == (comparisons == 2)

    def test_json_stays_one_value_on_stdout(self, active, tmp_path):
        fake_runs(active, tmp_path, check=0)
        done = run(CHECK, "--debug-dump", "--json", env=active)
        assert done.stdout == "verdict\n" and "compared\n" in done.stderr

    @pytest.mark.parametrize(
        "arguments", [("--bogus",), ("--steps",), ("--out", "--json"), ("--workload", "mnist"), ("quick",)]
    )
    def test_usage_errors_exit_2_before_anything_is_installed(self, arguments):
        done = run(CHECK, *arguments, env={"PATH": os.environ["PATH"]})
        assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("error: ")
        assert "usage: scripts/determinism-check.sh" in done.stderr

    def test_help(self):
        done = run(CHECK, "--help")
        assert done.returncode == 0 and all(
            flag in done.stdout
            for flag in "--quick --full --device --workload --inject --steps --seed --out --debug-dump --json".split()
        )


def test_the_active_environment_is_named(active):
    done = run(CHECK, env=active)
    assert done.stderr == f"using the active environment: {active['VIRTUAL_ENV']}/bin/python\n"


@pytest.mark.parametrize("script", ["scripts/test.sh", ".ci/run"])
def test_the_test_script_runs_everything(active, script):
    done = run(ROOT / script, "-k", "one thing", env=active)
    workers = ["-n", "2", "--dist", "loadfile"]
    assert (
        called(done) == ["-m", "pytest", "-m", "", "--durations=25", *workers, "-k", "one thing"]
        and done.returncode == 7
    )


def test_the_test_script_without_xdist_runs_in_one_process(active):
    python = Path(active["VIRTUAL_ENV"], "bin", "python")
    python.write_text(python.read_text().replace("\n", '\n[[ "$2" == "import xdist" ]] && exit 1\n', 1))
    assert called(run(ROOT / "scripts" / "test.sh", env=active)) == ["-m", "pytest", "-m", "", "--durations=25"]


def test_setup_is_not_to_be_run():
    assert subprocess.run(["bash", ROOT / "scripts" / "setup.sh"], capture_output=True).returncode == 2


class TestSetup:
    """In a copy of the scripts, with a stand-in for Python that makes environments of stand-ins."""

    @pytest.fixture
    def copy(self, tmp_path):
        for name in ("scripts/setup.sh", "scripts/test.sh", "scripts/constraints.txt", "pyproject.toml"):
            (tmp_path / "repo" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "repo" / name).write_bytes((ROOT / name).read_bytes())
        (tmp_path / "repo" / "scripts" / "test.sh").chmod(0o755)
        fake = tmp_path / "path" / "python3.11"
        fake.parent.mkdir()
        fake.write_text(FAKE_PYTHON)
        fake.chmod(0o755)
        return tmp_path

    def run(self, copy, **env):
        path = f"{copy / 'path'}:/usr/bin:/bin"
        return run(copy / "repo" / "scripts" / "test.sh", env={"PATH": path, "LOG": str(copy / "log"), **env})

    def test_torch_comes_first_and_everything_under_the_constraints(self, copy):
        assert self.run(copy).returncode == 0
        lines = (copy / "log").read_text().splitlines()
        installs = [line for line in lines if "pip install" in line]
        assert installs[0].endswith("scripts/constraints.txt torch==2.13.0")
        assert "[workloads]" in installs[-1] and "pytest" in installs[-1]
        assert all(f"--constraint {copy}/repo/scripts/constraints.txt" in line for line in installs)

    def test_a_later_call_installs_nothing(self, copy):
        self.run(copy)
        (copy / "log").write_text("")
        done = self.run(copy)
        assert (
            copy / "log"
        ).read_text() == "-c import xdist\n-m pytest -m  --durations=25 -n 2 --dist loadfile\n" and done.stderr == ""

    @pytest.mark.parametrize("name", ["scripts/constraints.txt", "pyproject.toml"])
    def test_a_change_installs_again(self, copy, name):
        self.run(copy)
        (copy / "log").write_text("")
        with (copy / "repo" / name).open("a") as file:
            file.write("\n# changed\n")
        assert "bringing .venv up to date" in self.run(copy).stderr and "pip install" in (copy / "log").read_text()

    def test_a_failing_pip_says_what_and_leaves_no_stamp(self, copy):
        done = self.run(copy, PIP_FAILS="1")
        assert done.returncode == 2 and "pip said so" in done.stderr
        assert "error: pip install torch==2.13.0 failed" in done.stderr and "then run again" in done.stderr
        assert self.run(copy).returncode == 0 and "pip install" in (copy / "log").read_text()


FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >>"$LOG"
case "$1 $2" in
  "-m venv") mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  "-m pip") if [[ -n "${PIP_FAILS:-}" ]]; then echo "pip said so"; exit 1; fi ;;
esac
"""


def test_constraints_pin_what_the_scripts_install():
    pins = dict(
        line.split("==")
        for line in (ROOT / "scripts" / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert pins["torch"] == "2.13.0" and {
        "numpy",
        "xxhash",
        "pytest",
        "pytest-xdist",
        "hypothesis",
        "ruff",
        "mypy",
    } <= set(pins)


@pytest.mark.slow
def test_the_quick_check_for_real(tmp_path):
    """The script itself with the real recorder, a few steps: clean exits 0."""
    env = {**os.environ, "VIRTUAL_ENV": sys.prefix, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = run(CHECK, "--quick", "--steps", "3", "--out", tmp_path / "out", env=env)
    assert done.returncode == 0 and done.stdout.startswith("CLEAN: bit-exact over "), done.stderr


@pytest.fixture
def real():
    """The environment in which the scripts run the tests' own python, for real."""
    return {**os.environ, "VIRTUAL_ENV": sys.prefix, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def debug_dump(env, out, *arguments):
    """`--debug-dump` over a few steps, the dumped leaves alone recorded."""
    return run(
        CHECK, "--quick", "--debug-dump", "--steps", "4", "--leaves", "checksums.*", "--out", out, *arguments, env=env
    )


@pytest.mark.slow
def test_a_stale_rebuild_is_explained_from_its_dumps(real, tmp_path):
    """The seed's case for real, in a directory with a blank. Threads may miss each other, and a stale child that hardly
    changed is no further off than rounding: a few tries are allowed, but the hypothesis must be right in each."""
    for attempt in range(5):
        done = debug_dump(real, tmp_path / f"the out {attempt}", "--inject", "tree-stale-read")
        if done.returncode:
            assert "VERDICT: HYPOTHESIS C (tree-rebuild nondeterminism): tree is the first to differ" in done.stdout
        if "stale or half-updated children" in done.stdout:
            break
    assert done.returncode == 1, done.stderr
    assert "stale or half-updated children" in done.stdout and "  prng: EQUAL (128 elements)\n" in done.stdout


@pytest.mark.slow
def test_a_racing_rebuild_is_c_by_rounding(real, tmp_path):
    for attempt in range(4):
        done = debug_dump(real, tmp_path / str(attempt), "--inject", "tree-rebuild-race")
        if done.returncode:
            break
    assert done.returncode == 1, done.stderr
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith("VERDICT: HYPOTHESIS C") and "apart by rounding only" in verdict
    assert "stale" not in verdict


@pytest.mark.slow
def test_a_flipping_walk_is_b(real, tmp_path):
    """From step 1 on, so that the tree it walks is among the dumped ones."""
    for attempt in range(4):
        done = debug_dump(real, tmp_path / str(attempt), "--steps", "20", "--inject", "late:1:tree-walk-flip")
        if "HYPOTHESIS" in done.stdout:
            break
    assert done.returncode == 1, done.stderr
    assert "VERDICT: HYPOTHESIS B (tree-walk comparison flip): indices is the first to differ" in done.stdout


@pytest.mark.slow
def test_a_drifting_prng_is_a_and_shows_at_its_step(real, tmp_path):
    done = debug_dump(real, tmp_path, "--inject", "prng-drift")
    assert done.returncode == 1 and "step 2:\n  prng: DIVERGE at idx 0\n" in done.stdout
    assert "VERDICT: HYPOTHESIS A (PRNG seeding drift): prng is the first to differ, at step 2" in done.stdout


@pytest.mark.slow
def test_a_clean_run_matches_at_all_dumped_steps(real, tmp_path):
    done = debug_dump(real, tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^VERDICT: all \w+ buffers match across all dumped steps \(0, 1, 2\)\.$", done.stdout, re.M)


@pytest.mark.slow
def test_a_divergence_beyond_the_dumped_steps_is_dumped_by_a_repeat(real, tmp_path):
    done = debug_dump(real, tmp_path, "--steps", "12", "--inject", "late:6:prng-drift")
    first, again = done.stdout.split("the pair again, with dumps around the step at which it first differed:")
    assert "across all dumped steps (0, 1, 2)." in first
    assert "step 6:\n  prng: DIVERGE at idx 0\n" in again and "VERDICT: HYPOTHESIS A" in again


@pytest.mark.slow
def test_a_race_in_the_encoder_is_none_of_the_three(real, tmp_path):
    """Its first traces among the buffers are the priorities: an honest `none`, where three buffers would say C."""
    for attempt in range(4):
        done = debug_dump(real, tmp_path / str(attempt), "--steps", "8", "--inject", "encoder-race")
        if "none of A, B, C" in done.stdout:
            break
    assert "VERDICT: none of A, B, C: priorities is the first to differ" in done.stdout
