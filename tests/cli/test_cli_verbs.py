"""Each verb on small runs: what it prints and how it exits."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from detaudit import cli
from detaudit.core.model import Layout, Leaf, RunManifest
from tests.made_runs import MANIFEST, NAMES, layout, make_run, make_trail

FAKE = str(Path(__file__).parents[1] / "fake_training.py")


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Runs the command line in an empty working directory: (exit code, stdout, stderr)."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def run(*argv):
        code = cli.main([str(word) for word in argv])
        return (code, *capsys.readouterr())

    return run


class TestCheck:
    def test_clean(self, call):
        code, out, err = call("check", "--", sys.executable, FAKE)
        assert code == 0 and out.startswith("CLEAN: bit-exact over 10 steps and 3 leaves\n")
        assert "certificate: detaudit-out/certificate.json\nnext: detaudit verify detaudit-out\n" in out
        assert [line[:6] for line in err.splitlines()] == ["run A:", "run A:", "run B:", "run B:"]

    def test_diverged(self, call):
        code, out, _ = call("check", "--stats", "--no-drill", "--out", "o", "--", sys.executable, FAKE, "diverge:4")
        assert code == 1 and out.startswith("FIRST_DIVERGENCE: step=4 leaf=loss run_A=3.625 run_B=3.75 delta=0.125\n")

    def test_a_failed_command_shows_its_last_words_on_stderr(self, call):
        code, out, err = call("check", "--", sys.executable, "-c", "import sys; sys.exit('out of memory')")
        assert code == 3 and out.startswith("INCONCLUSIVE: run A failed with exit status 1")
        assert "run A, end of its stderr:\nout of memory\n" in err

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["check"], "no command to run; write it after --"),
            (["check", "--"], "no command to run"),
            (["check", "--runs", "1", "--", "true"], "at least 2 runs"),
            (["check", "--", "no-such-program"], "no-such-program cannot be run"),
            (["record", "--out", "x"], "detaudit record -- python train.py"),
        ],
    )
    def test_usage(self, call, argv, words):
        code, out, err = call(*argv)
        assert code == 2 and out == "" and err.splitlines()[-1].startswith("error: ") and words in err


class TestRecord:
    def test_recorded(self, call):
        code, out, _ = call("record", "--out", "r", "--every", "2", "--", sys.executable, FAKE)
        assert code == 0 and Path("r/main.trail").is_file()
        assert out.splitlines()[:3] == ["RECORDED", "  trail         steps  leaves", "  r/main.trail      5       3"]

    @pytest.mark.parametrize(
        ("how", "words"), [("silent", "recorded nothing"), ("fail:5", "failed with exit status 5")]
    )
    def test_not_recorded(self, call, how, words):
        code, out, _ = call("record", "--out", "r", "--", sys.executable, FAKE, how)
        assert code == 3 and out.startswith("NOT RECORDED: ") and words in out

    def test_json(self, call):
        _, out, _ = call("record", "--out", "r", "--json", "--", sys.executable, FAKE, "fail:5")
        value = json.loads(out)
        assert value["recorded"] is False and value["run"]["exit_status"] == 5
        assert value["trails"] == [{"name": "main", "file": "main.trail", "steps": 10, "leaves": 3}]

    def test_two_records_are_what_diff_takes(self, call):
        for name in "ab":
            call("record", "--out", name, "--", sys.executable, FAKE)
        assert call("diff", "a", "b")[0] == 0

    def test_an_unknown_variable_is_refused(self, call, monkeypatch):
        monkeypatch.setenv("DETAUDIT_STEP", "3")
        code, _, err = call("record", "--out", "r", "--", "true")
        assert code == 2 and "DETAUDIT_STEP" in err and not Path("r").exists()


class TestDiff:
    def test_clean_and_diverged(self, call, tmp_path):
        a, b, c = (
            make_run(tmp_path / name, changes=ch) for name, ch in (("A", {}), ("B", {}), ("C", {(3, "loss"): 1}))
        )
        code, out, err = call("diff", a, b)
        assert (code, err) == (0, "") and out.startswith("CLEAN: ")
        code, out, _ = call("diff", a, c)
        assert code == 1 and out.startswith("FIRST_DIVERGENCE: step=3 leaf=loss ")
        assert call("diff", a / "main.trail", c)[0] == 1
        assert call("diff", a, c, "--leaves", "!loss")[0] == 0

    def test_the_directory_of_an_audit(self, call, tmp_path):
        make_run(tmp_path / "A")
        make_run(tmp_path / "B")
        assert call("diff", tmp_path)[0] == 0
        code, _, err = call("diff", tmp_path / "A")
        assert code == 2 and "a second run must be named" in err

    def test_not_comparable_and_the_override(self, call, tmp_path):
        other = RunManifest({**MANIFEST.decisive, "torch": "2.1"}, {})
        a, b = make_run(tmp_path / "A"), make_run(tmp_path / "B", manifest=other)
        code, out, _ = call("diff", a, b)
        assert code == 3 and "torch: A not set, B 2.1" in out.replace("\n  ", " ")
        code, out, _ = call("diff", a, b, "--allow-differences")
        assert code == 0 and "override: unequal manifests were allowed by the user\n  torch: A not set, B 2.1\n" in out

    @pytest.mark.parametrize(
        "content", [b"", b"hello", b"DETAUDIT\x09\0\0\0\0\0\0\0"], ids=["empty", "text", "version"]
    )
    def test_bad_input(self, call, tmp_path, content):
        bad = tmp_path / "bad.trail"
        bad.write_bytes(content)
        code, out, err = call("diff", make_trail(tmp_path / "good.trail"), bad)
        assert code == 2 and out == "" and err.startswith(f"error: {bad}")


class TestShow:
    def test_summary(self, call, tmp_path):
        notes = [{"kind": "nonfinite", "leaf": "loss", "what": "NaN", "step": 2}]
        odd = Layout((*layout().leaves, Leaf("act.q", "qint8", (), "quantised tensor")))
        make_run(tmp_path / "A", notes=notes, layouts={4: odd})
        code, out, _ = call("show", tmp_path / "A")
        lines = [line.strip() for line in out.splitlines()]
        assert code == 0 and lines[1].startswith("steps 5 (0 to 4), ")
        assert "layout 0: 5 leaves, closed by update, 4 steps" in lines
        assert "unsupported: act.q: quantised tensor" in lines
        assert "note nonfinite: leaf=loss, step=2, what=NaN" in lines and "command" not in out

    def test_digests_of_a_step(self, call, tmp_path):
        make_run(tmp_path / "A", changes={(3, "loss"): 0xABC}, sumsq={(3, "loss"): 2.25})
        _, out, _ = call("show", tmp_path / "A", "--step", "3", "--leaf", "lo*")
        assert out.splitlines()[-1].split() == ["3", "3", "loss", "float32", "2x3", f"{0xABC:016x}", "2.25"]
        _, out, _ = call("show", tmp_path / "A", "--leaf", "loss", "--json")
        assert [row["step"] for row in json.loads(out)["trails"]["main"]["leaves"]] == [0, 1, 2, 3, 4]

    def test_manifest(self, call, tmp_path):
        _, out, _ = call("show", make_run(tmp_path / "A"), "--manifest")
        assert "    threads  2\n" in out and "    cpus  2\n" in out

    @pytest.mark.parametrize("argv", [("--step", "99"), ("--leaf", "no.*")])
    def test_nothing_found_is_an_error(self, call, tmp_path, argv):
        code, out, err = call("show", make_run(tmp_path / "A"), *argv)
        assert code == 2 and out == "" and "steps 0 to 4" in err

    def test_a_torn_trail_says_what_was_dropped(self, call, tmp_path):
        path = make_trail(tmp_path / "a.trail", end="")
        path.write_bytes(path.read_bytes()[:-5])
        _, out, _ = call("show", path)
        assert "bytes of a torn tail dropped" in out and "(did not end by itself)" in out

    def test_environment(self, call, monkeypatch):
        monkeypatch.setenv("DETAUDIT_EVERY", "3")
        code, out, _ = call("show", "env", "--json")
        rows = {row["name"]: row for row in json.loads(out)["env"]}
        assert code == 0 and (rows["DETAUDIT_EVERY"]["value"], rows["DETAUDIT_EVERY"]["source"]) == ("3", "environment")
        assert rows["DETAUDIT_STEPS"]["source"] == "default"

    def test_an_unknown_variable_shows_the_table_and_fails(self, call, monkeypatch):
        monkeypatch.setenv("DETAUDIT_EVRY", "3")
        code, out, err = call("show", "env")
        assert code == 2 and "DETAUDIT_EVERY" in out and "unknown environment variable DETAUDIT_EVRY" in err


class TestVerify:
    def test_a_whole_audit(self, call):
        call("check", "--", sys.executable, FAKE)
        code, out, _ = call("verify", "detaudit-out")
        assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["ok"] * 3
        assert "certifies 10 steps and 3 leaves of 2 trails" in out
        assert call("verify", "detaudit-out/certificate.json", "detaudit-out/A/main.trail")[0] == 0

    def test_a_flipped_bit(self, call, tmp_path):
        path = make_trail(tmp_path / "a.trail")
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
        code, out, _ = call("verify", path, make_trail(tmp_path / "b.trail"))
        assert code == 2 and "FAILED" in out and "frame" in out and "b.trail" in out

    def test_a_torn_trail(self, call, tmp_path):
        path = make_trail(tmp_path / "a.trail")
        path.write_bytes(path.read_bytes()[:-5])
        code, out, _ = call("verify", path)
        assert code == 3 and "bytes of a torn tail dropped" in out

    def test_a_trail_without_an_end(self, call, tmp_path):
        code, out, _ = call("verify", make_trail(tmp_path / "a.trail", end=""))
        assert code == 3 and "did not end by itself" in out

    def test_a_refuted_certificate(self, call):
        call("check", "--", sys.executable, FAKE)
        Path("detaudit-out/A/main.trail").unlink()
        code, out, _ = call("verify", "detaudit-out/certificate.json", "--json")
        assert code == 3 and "is missing" in json.loads(out)["checks"][0]["detail"]

    def test_nothing_named(self, call):
        assert call("verify")[0] == 2

    @pytest.mark.slow
    def test_itself(self, call):
        code, out, _ = call("verify", "--self")
        assert code == 0 and "same loss bits with and without the recorder" in out and "FAILED" not in out

    def test_a_recorder_that_disturbs_is_found(self, call, monkeypatch):
        from detaudit.cli import selfcheck

        monkeypatch.setattr(selfcheck, "_train", lambda extra: ["0x1p0", "0x1p1" if extra else "0x1p2"])
        code, out, _ = call("verify", "--self")
        assert code == 3 and "FAILED" in out and "without: 0x1p0 0x1p2; with: 0x1p0 0x1p1" in out

    def test_a_recorder_that_did_not_record_shows_nothing(self, call, monkeypatch):
        from detaudit.cli import selfcheck

        monkeypatch.setattr(selfcheck, "_train", lambda extra: ["0x1p0"])
        assert call("verify", "--self")[0] == 3


class TestExport:
    def test_jsonl_over_all_ranks(self, call, tmp_path):
        code, out, err = call("export", make_run(tmp_path / "A", ranks=("rank0", "rank1"), steps=2))
        rows = [json.loads(line) for line in out.splitlines()]
        assert (code, err) == (0, "") and len(rows) == 2 * 2 * len(NAMES)
        assert {row["rank"] for row in rows} == {"rank0", "rank1"}

    def test_csv_has_one_head(self, call, tmp_path):
        _, out, _ = call("export", make_run(tmp_path / "A", ranks=("rank0", "rank1"), steps=2), "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert len(rows) == 20 and rows[0]["leaf"] == NAMES[0] and "rank" not in {row["rank"] for row in rows}

    def test_to_a_file(self, call, tmp_path):
        code, out, err = call("export", make_run(tmp_path / "A"), "-o", "rows.csv", "--format", "csv")
        assert (code, out) == (0, "") and err == "wrote 25 rows to rows.csv\n"
        assert len(Path("rows.csv").read_text().splitlines()) == 26

    def test_stats_on_some_ranks_only(self, call, tmp_path):
        make_run(tmp_path / "A", ranks=("rank0",), sumsq={})
        make_run(tmp_path / "A", ranks=("rank1",))
        assert call("export", tmp_path / "A", "--format", "csv")[0] == 2
        assert call("export", tmp_path / "A", "--format", "jsonl")[0] == 0

    def test_usage(self, call, tmp_path):
        run = make_run(tmp_path / "A")
        assert call("export", run, "--json")[0] == 2
        assert "cannot be written" in call("export", run, "-o", tmp_path / "no" / "rows")[2]
        assert call("export", tmp_path / "gone")[0] == 2
