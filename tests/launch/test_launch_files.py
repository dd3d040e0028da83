"""Which files a run touched, and which directory may be written to."""

from __future__ import annotations

import os

import pytest

from detaudit.core.errors import UsageError
from detaudit.launch import files, outdir


def test_new_and_changed_files(tmp_path):
    for name in ("same", "longer", "touched"):
        (tmp_path / name).write_text("x")
    before = files.snapshot(tmp_path)
    (tmp_path / "longer").write_text("xx")
    os.utime(tmp_path / "touched", ns=(1, 1))
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "new").write_text("")
    assert files.changed(before, files.snapshot(tmp_path)) == ["deep/er/new", "longer", "touched"]


def test_caches_and_our_own_results_are_left_out(tmp_path):
    for name in ("out", "__pycache__", ".git", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    assert list(files.snapshot(tmp_path, tmp_path / "out")) == ["kept/file"]


def test_a_cut_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LIMIT", 3)
    for index in range(5):
        (tmp_path / str(index)).write_text("")
    assert files.changed({}, files.snapshot(tmp_path))[-1] == "... only the first 3 files were looked at"


def test_a_dangling_link_is_no_error(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert list(files.snapshot(tmp_path)) == ["link"]


class TestOutdir:
    def test_a_fresh_one(self, tmp_path):
        made = outdir.prepare(tmp_path / "a" / "b")
        assert made.is_dir() and (made / ".gitignore").read_text() == "*\n"

    def test_an_earlier_result_is_emptied(self, tmp_path):
        made = outdir.prepare(tmp_path / "out")
        (made / "old.trail").write_text("")
        assert not (outdir.prepare(made) / "old.trail").exists()

    def test_an_empty_directory_of_the_user_is_taken(self, tmp_path):
        assert outdir.prepare(tmp_path) == tmp_path

    def test_foreign_files_are_never_removed(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("years")
        with pytest.raises(UsageError, match="not written by detaudit"):
            outdir.prepare(tmp_path)
        assert (tmp_path / "thesis.tex").read_text() == "years"

    def test_a_file(self, tmp_path):
        (tmp_path / "out").write_text("")
        with pytest.raises(UsageError, match="is a file"):
            outdir.prepare(tmp_path / "out")
