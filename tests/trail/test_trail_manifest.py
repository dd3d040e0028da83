"""The manifest: a fixed list of variables and no other, and what makes two runs incomparable."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from detaudit.core.model import RunManifest
from detaudit.digest import spec
from detaudit.trail import frames
from detaudit.trail.manifest import (
    CONTEXT_VARIABLES,
    DECISIVE_VARIABLES,
    base_manifest,
    code_digest,
    cpu_model,
    differences,
    git_commit,
)
from detaudit.trail.reader import TrailReader
from detaudit.trail.writer import TrailWriter


def test_only_listed_variables_are_recorded(tmp_path):
    environ = dict.fromkeys(DECISIVE_VARIABLES + CONTEXT_VARIABLES, "1")
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "s3cr3t-key",
        "MY_TOKEN": "hunter2",
        "HOME": "/home/someone",
        "PASSWORD": "pass",
    }
    manifest = base_manifest({**environ, **secrets}, ["train.py"])
    kept = {key.removeprefix("env.") for key in [*manifest.decisive, *manifest.context] if key.startswith("env.")}
    assert kept == set(environ)
    TrailWriter(tmp_path / "t", manifest).close()
    with TrailReader(tmp_path / "t") as trail:
        text = json.dumps([dict(trail.manifest.decisive), dict(trail.manifest.context)])
    assert not any(word in text for pair in secrets.items() for word in pair)


def test_no_name_on_the_list_can_hold_a_secret():
    for name in DECISIVE_VARIABLES + CONTEXT_VARIABLES:
        assert not any(word in name for word in ("SECRET", "TOKEN", "PASSW", "CREDENTIAL", "API_KEY")), name
    assert len(set(DECISIVE_VARIABLES + CONTEXT_VARIABLES)) == len(DECISIVE_VARIABLES) + len(CONTEXT_VARIABLES)


def test_what_a_base_manifest_holds():
    manifest = base_manifest({"OMP_NUM_THREADS": "4", "RANK": "1"}, iter(["python", "train.py"]))
    assert manifest.decisive["command"] == ["python", "train.py"]
    assert manifest.decisive["python"] == sys.version.split()[0]
    assert manifest.decisive["digest"] == spec.VERSION
    assert manifest.decisive["env.OMP_NUM_THREADS"] == "4"
    assert manifest.context["env.RANK"] == "1"
    assert "env.MKL_CBWR" not in manifest.decisive
    frames.canonical_json([dict(manifest.decisive), dict(manifest.context)])


def test_equal_environments_give_equal_bytes(tmp_path):
    environ = {"OMP_NUM_THREADS": "4", "MKL_CBWR": "COMPATIBLE"}
    turned = dict(reversed(environ.items()))
    TrailWriter(tmp_path / "a", base_manifest(environ, ["x"])).close()
    TrailWriter(tmp_path / "b", base_manifest(turned, ["x"])).close()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_differences_name_the_key_and_both_values():
    a = RunManifest({"command": ["python", "a.py"], "env.OMP_NUM_THREADS": "2", "same": 1}, {"cpus": 2})
    b = RunManifest({"command": ["python", "b.py"], "torch": "2.13.0", "same": 1}, {"cpus": 64})
    assert differences(a, b) == [
        "command: A python a.py, B python b.py",
        "env.OMP_NUM_THREADS: A 2, B not set",
        "torch: A not set, B 2.13.0",
    ]


def test_differences_of_a_manifest_with_itself_and_reversed():
    a, b = RunManifest({"x": 1, "y": [1, 2]}), RunManifest({"x": 2})
    assert differences(a, a) == []
    swapped = [line.replace("A ", "?").replace("B ", "A ").replace("?", "B ") for line in differences(b, a)]
    assert [set(line.split(": ")[1].split(", ")) for line in swapped] == [
        set(line.split(": ")[1].split(", ")) for line in differences(a, b)
    ]


def test_a_manifest_survives_the_file(tmp_path):
    """Lists stay lists: a tuple would come back as a list and look like a difference."""
    manifest = base_manifest({"OMP_NUM_THREADS": "4"}, ("python", "train.py"))
    TrailWriter(tmp_path / "t", manifest).close()
    with TrailReader(tmp_path / "t") as trail:
        assert trail.manifest == manifest
        assert differences(trail.manifest, manifest) == []


def test_code_digest(tmp_path):
    (tmp_path / "pkg").mkdir()
    first, second = tmp_path / "a.py", tmp_path / "pkg" / "b.py"
    first.write_text("x = 1\n")
    second.write_text("y = 2\n")
    digest, count = code_digest([second, first, first], tmp_path)
    assert count == 2 and len(digest) == 64
    assert code_digest([first, second], tmp_path)[0] == digest
    assert code_digest([first, second, tmp_path / "gone.py"], tmp_path) == (digest, 2)
    second.write_text("y = 3\n")
    changed = code_digest([first, second], tmp_path)[0]
    assert changed != digest
    second.write_text("y = 2\n")
    second.rename(tmp_path / "pkg" / "c.py")
    assert code_digest([first, tmp_path / "pkg" / "c.py"], tmp_path)[0] not in (digest, changed)


def test_code_digest_does_not_depend_on_where_the_code_lies(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n")
    here, there = (code_digest([tmp_path / name / "a.py"], tmp_path / name) for name in ("here", "there"))
    assert here == there
    assert code_digest([tmp_path / "here" / "a.py"], tmp_path / "there")[1] == 1


def test_moving_text_between_files_changes_the_code_digest(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"12")
    b.write_bytes(b"3")
    before = code_digest([a, b], tmp_path)
    a.write_bytes(b"1")
    b.write_bytes(b"23")
    assert code_digest([a, b], tmp_path) != before


@pytest.mark.parametrize(
    ("text", "expected"),
    [("processor : 0\nmodel name\t: Some CPU @ 2 GHz\n", "Some CPU @ 2 GHz"), ("CPU part\t: 0xd0c\n", "0xd0c")],
)
def test_cpu_model(tmp_path, text, expected):
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_model(str(tmp_path / "cpuinfo")) == expected
    assert isinstance(cpu_model(str(tmp_path / "missing")), str)


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_read_from_a_repository_however_its_refs_are_kept(tmp_path):
    repo, linked = tmp_path / "repo", tmp_path / "linked"
    repo.mkdir()
    git(repo, "init", "-q")
    assert git_commit(repo) == "", "a repository without a commit has none"
    git(repo, "commit", "-q", "--allow-empty", "-m", "one")
    head = git(repo, "rev-parse", "HEAD")
    (repo / "deep").mkdir()
    assert git_commit(repo / "deep") == head
    git(repo, "worktree", "add", "-q", str(linked), "-b", "other")
    assert git_commit(linked) == head
    git(repo, "pack-refs", "--all")
    assert git_commit(repo) == git_commit(linked) == head
    git(repo, "checkout", "-q", "--detach")
    assert git_commit(repo) == head


def test_there_is_no_commit_outside_a_repository(tmp_path):
    assert git_commit(tmp_path) == ""
