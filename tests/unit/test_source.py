"""What of a folder is sent: what git lists, what .fleetignore says, and what is never sent unasked."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from fleet.delivery.tree import Tree, scan
from fleet.errors import UsageError
from fleet.model import Host
from tests.free_port import free_port
from tests.fuzz.ignore import fuzz
from tests.in_process import typed
from tests.liar import steady

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + "b3BlbnNzaC1rZXktdjEAAAAA" * 4 + "\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    return tmp_path / "src"


def fill(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, newline="")


def git(folder: Path, *words: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "n",
        "GIT_AUTHOR_EMAIL": "e@x",
        "GIT_COMMITTER_NAME": "n",
        "GIT_COMMITTER_EMAIL": "e@x",
    }
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True, env={**os.environ, **identity}
    ).stdout


def files(tree: Tree) -> set[str]:
    return {entry[0] for entry in tree.entries if entry[1] != "d" and not entry[0].endswith("ignore")}


def folders(tree: Tree) -> set[str]:
    return {entry[0] for entry in tree.entries if entry[1] == "d"}


@pytest.mark.slow
def test_the_fuzzer_finds_nothing() -> None:
    count, failed = fuzz(seconds=600, seed=22, most=steady.max_examples // 3)
    assert count > 1 and not failed, failed


# -- git decides ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("with_git", [True, False])
@pytest.mark.parametrize(
    ("patterns", "sent"),
    [
        ("*\n!*/\n!*.py", {"a.py", "sub/b.py", "sub/deep/c.py"}),
        ("**\n!**/\n!*.py", {"a.py", "sub/b.py", "sub/deep/c.py"}),
        ("/**\n!/**/\n!*.py", {"a.py", "sub/b.py", "sub/deep/c.py"}),
        ("sub/**\n!sub/**/\n!sub/**/*.yaml", {"a.py", "a.txt", "sub/deep/d.yaml"}),
        ("\ufeff*.py", {"a.txt", "sub/deep/d.yaml"}),
    ],
)
def test_whitelists_reach_into_folders(source: Path, patterns: str, sent: set[str], with_git: bool) -> None:
    fill(source, dict.fromkeys(("a.py", "a.txt", "sub/b.py", "sub/deep/c.py", "sub/deep/d.yaml"), ""))
    fill(source, {".gitignore": patterns})
    if with_git:
        git(source, "init", "-q")
    assert files(scan(source)) == sent


def test_tracked_files_go_whatever_a_pattern_says(source: Path) -> None:
    fill(source, {".gitignore": "*.bin\n/out/\n", "w.bin": "", "other.bin": "", "out/kept.txt": "", "out/not.txt": ""})
    git(source, "init", "-q")
    git(source, "add", "-f", "w.bin", "out/kept.txt")
    assert files(scan(source)) == {"w.bin", "out/kept.txt"}
    fill(source, {".fleetignore": "w.bin\n"})
    assert files(scan(source)) == {"out/kept.txt"}


def test_info_exclude_and_the_users_own_file_count(source: Path, home: Path) -> None:
    fill(source, {".env": "", "a.py": "", "a.swp": "", "b.log": ""})
    git(source, "init", "-q")
    fill(source, {".git/info/exclude": ".env\n"})
    fill(home, {".config/git/ignore": "*.swp\n"})
    assert files(scan(source)) == {"a.py", "b.log"}
    git(source, "config", "core.excludesFile", "~/mine")
    fill(home, {"mine": "*.log\n"})
    tree = scan(source)
    assert files(tree) == {"a.py", "a.swp"}
    assert tree.excluded([("gone.log", "f"), ("gone.swp", "f"), ("sub/.env", "f")]) == {"gone.log", "sub/.env"}


def test_without_git_info_exclude_counts_and_one_notice_says_why(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(source, {".env": "", "a.py": "", ".gitignore": "*.log\n", "b.log": "", "in/c.log": "", "in/c.py": ""})
    git(source, "init", "-q")
    git(source / "in", "init", "-q")
    git(source, "add", "-f", "b.log")
    fill(source, {".git/info/exclude": ".env\n"})
    monkeypatch.setenv("PATH", "/nowhere")
    tree = scan(source)
    assert files(tree) == {"a.py", "in/c.py", "in/c.log"}
    (notice,) = tree.notices
    assert "git does not list" in notice and "git: No such file" in notice


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_repository_that_belongs_to_another_user_is_read_by_fleet(source: Path) -> None:
    fill(source, {"a.py": "", ".gitignore": "*.log\n", "b.log": ""})
    git(source, "init", "-q")
    for path in (source, *source.rglob("*")):
        os.chown(path, 65534, 65534)
    tree = scan(source)
    assert files(tree) == {"a.py"} and "dubious ownership" in tree.notices[0]


def test_submodules_and_clones_inside_decide_for_themselves(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    fill(other, {"lib.py": "", "x.log": "", ".gitignore": "*.tmp\n", "y.tmp": ""})
    git(other, "init", "-q")
    git(other, "add", "lib.py", ".gitignore")
    git(other, "commit", "-qm", "one")
    git(source, "init", "-q")
    fill(source, {"a.py": ""})
    for name in ("sub", "clone", "left"):
        shutil.copytree(other, source / name)
    git(source, "add", "sub")
    fill(source, {".gitignore": "*.log\nlib.py\n/left/\nsub/\n"})
    sent = {"a.py", "sub/lib.py", "sub/x.log", "clone/lib.py", "clone/x.log"}
    assert files(scan(source)) == sent
    fill(source, {".fleetignore": "x.log\n"})
    assert files(scan(source)) == sent - {"sub/x.log", "clone/x.log"}


@pytest.mark.parametrize(
    ("copy", "why"),
    [
        ("cp -r {0} {1}; rm -r {1}/.git/modules", "lib/ (its git folder is gone)"),
        ("cp -r {0} {1}; rm {1}/lib/.git", "lib/ (its git folder is gone)"),
        ("cp -r {0}/lib {1}", "{1} (its git folder is gone)"),
        (
            "cp -r {0} {1}; cp -r {1}/lib {1}/lib2; mv {1}/lib/new {1}/lib2/",
            "lib2/ (its git folder is that of {1}/lib)",
        ),
        ("git -C {0} worktree add -q {1}; mv {0} {0}.old", "{1} (its git folder is gone)"),
    ],
)
def test_a_git_folder_that_is_gone_or_anothers_takes_no_file_away(
    source: Path, tmp_path: Path, copy: str, why: str
) -> None:
    """Of submodules and worktrees that were copied or moved."""
    outer, copied = tmp_path / "outer", tmp_path / "copied"
    for folder in (source, outer):
        fill(folder, {"tracked": "1"})
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "x")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source), "lib")
    git(outer, "commit", "-qm", "x")
    fill(outer, {"lib/new": "2"})
    subprocess.run(["sh", "-ec", copy.format(outer, copied)], check=True)
    tree = scan(copied)
    here = {str(path.relative_to(copied)) for path in copied.rglob("*") if path.is_file() and ".git" not in str(path)}
    assert files(tree) - {".gitmodules"} == here, tree.notices
    (notice,) = tree.notices
    assert notice.startswith(f"git does not list {why.format(outer, copied)}")


def test_deleted_files_are_left_out_and_empty_folders_kept(source: Path) -> None:
    fill(source, {"a.py": "", "gone.py": "", ".gitignore": "cache/\n*.o\n", "objects/x.o": ""})
    (source / "empty/in").mkdir(parents=True)
    (source / "cache").mkdir()
    git(source, "init", "-q")
    git(source, "add", ".")
    (source / "gone.py").unlink()
    tree = scan(source)
    assert files(tree) == {"a.py"} and folders(tree) == {"empty", "empty/in", "objects"}
    assert tree.excluded([("gone.py", "f"), ("cache", "d"), ("cache/deep/x", "f"), ("z.o", "f")]) == {
        "cache",
        "cache/deep/x",
        "z.o",
    }


@pytest.mark.parametrize("pattern", ["exp/", "exp/*", "exp/**", "*"])
def test_a_source_that_an_outer_repository_ignores_is_sent(source: Path, pattern: str) -> None:
    fill(source, {"exp/a.py": "", "exp/b.log": "", "exp/.gitignore": "*.log\n", "exp/sub/c.py": ""})
    git(source, "init", "-q")
    fill(source, {".gitignore": f"{pattern}\n"})
    assert files(scan(source / "exp")) == {"a.py", "sub/c.py"}


def test_a_folder_of_a_repository_is_judged_by_the_files_above_it_too(source: Path) -> None:
    fill(source, {".gitignore": "*.log\n/sub/top\n", ".fleetignore": "*.bin\n", "sub/a.py": "", "sub/x.log": ""})
    fill(source, {"sub/top": "", "sub/deep/top": "", "sub/w.bin": ""})
    git(source, "init", "-q")
    assert files(scan(source / "sub")) == {"a.py", "deep/top"}


def test_variables_of_git_do_not_lead_elsewhere(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(source, {"a.py": "", ".gitignore": "*.log\n", "x.log": ""})
    git(source, "init", "-q")
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    assert files(scan(source)) == {"a.py"} and scan(source).notices == ()


def test_nothing_runs_that_a_repository_names(source: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    trap.chmod(0o755)
    fill(source, {"in/a.py": "", "a.py": ""})
    for folder in (source / "in", source):
        git(folder, "init", "-q")
        for key in ("core.fsmonitor", "core.pager", "filter.x.clean", "core.sshCommand", "core.hooksPath"):
            git(folder, "config", key, str(trap))
    assert files(scan(source)) == {"a.py", "in/a.py"} and not (tmp_path / "ran").exists()


# -- .fleetignore -----------------------------------------------------------------------------------------------
def test_fleetignore_brings_back_what_git_ignores(source: Path) -> None:
    fill(source, {".gitignore": "*.bin\n/build/\n/out/\n", ".fleetignore": "!w.bin\n!build/lib.so\n!/out/\n"})
    fill(source, {"w.bin": "", "x.bin": "", "build/lib.so": "", "build/x.o": "", "build/in/y.o": "", "out/r.txt": ""})
    fill(source, {"out/z.bin": "", "node_modules/w.bin": "", ".git/w.bin": ""})
    shutil.rmtree(source / ".git")
    git(source, "init", "-q")
    tree = scan(source)
    assert files(tree) == {"w.bin", "build/lib.so", "out/r.txt"} and folders(tree) == {"build", "out"}


def test_a_pipe_for_an_ignore_file_is_named_and_nobody_waits(source: Path) -> None:
    fill(source, {"a.py": "", "sub/b.py": ""})
    os.mkfifo(source / ".fleetignore")
    with pytest.raises(UsageError, match=r"\.fleetignore is no file"):
        scan(source)
    (source / ".fleetignore").unlink()
    os.mkfifo(source / "sub/.gitignore")
    with pytest.raises(UsageError, match=r"sub/\.gitignore is no file"):
        scan(source)
    git(source, "init", "-q")
    with pytest.raises(UsageError, match=r"sub/\.gitignore is no file"):
        scan(source)


def test_why_names_file_and_line(source: Path) -> None:
    fill(source, {".gitignore": "# x\n*.log\n/data/\n", ".fleetignore": "train.py\n", "train.py": "", "data/x": ""})
    git(source, "init", "-q")
    tree = scan(source)
    assert str(tree.why("train.py")) == f"{source}/.fleetignore:1: train.py"
    assert str(tree.why("data/deep/run.py")) == f"{source}/.gitignore:3: /data/"
    assert tree.why("eval.py") is None


# -- never unasked ----------------------------------------------------------------------------------------------
def test_secrets_and_what_a_machine_makes_stay_here(source: Path) -> None:
    made = {"venv/pyvenv.cfg": "", "venv/bin/python": "", "conda/conda-meta/history": "", "x/__pycache__/a.pyc": ""}
    secret = {"id": KEY, "sub/deploy.pem": KEY, ".ssh/config": "", "sub/.netrc": "", ".aws/credentials": "", ".env": ""}
    fill(source, {"a.py": f'KEY = """\n{KEY}"""', "node_modules/x.js": "", ".cache/x": "", **made, **secret})
    fill(source, {"k.ppk": "PuTTY-User-Key-File-3: ssh-ed25519\n" + "x" * 100})
    tree = scan(source)
    assert files(tree) == {"a.py", ".env"}
    (notice,) = tree.notices
    for name in ("3 private keys (id, k.ppk, sub/deploy.pem)", "venv", "conda", "x/__pycache__", "sub/.netrc", "--all"):
        assert name in notice
    every = scan(source, everything=True)
    assert {"venv/bin/python", ".ssh/config", "sub/.netrc", "node_modules/x.js"} < files(every)
    assert not {"id", "sub/deploy.pem", "k.ppk"} & files(every)
    left = [("venv/lib/x.py", "f"), ("b/__pycache__/c.pyc", "f"), (".ssh/id", "f"), ("gone.py", "f"), ("id", "f")]
    assert tree.excluded(left) == {"venv/lib/x.py", "b/__pycache__/c.pyc", ".ssh/id", "id"}


@pytest.mark.parametrize(
    "text",
    ['{"private_key": "' + KEY.replace("\n", "\\n") + '"}', "key: |\n  " + KEY.replace("\n", "\n  "), "\ufeff" + KEY],
    ids=["json", "yaml", "bom"],
)
def test_a_private_key_is_known_wherever_it_stands_in_a_file(source: Path, text: str) -> None:
    """A service account's JSON, a secret's manifest, an editor's first bytes."""
    fill(source, {"k": text, "notes.txt": "grep -r -- '-----BEGIN OPENSSH PRIVATE KEY-----' of all that lies here\n"})
    assert files(scan(source)) == {"notes.txt"}


def test_what_git_tracks_goes_and_a_key_is_named(source: Path) -> None:
    fill(source, {"test.pem": KEY, ".ssh/config": "", "venv/pyvenv.cfg": "", "venv/new": "", "id_rsa": KEY})
    git(source, "init", "-q")
    git(source, "add", "test.pem", ".ssh", "venv/pyvenv.cfg")
    tree = scan(source)
    assert files(tree) == {"test.pem", ".ssh/config", "venv/pyvenv.cfg", "venv/new"}
    assert any("git tracks" in notice and "test.pem" in notice for notice in tree.notices)


def test_an_environment_that_a_host_uses_goes(source: Path) -> None:
    fill(source, {".venv/pyvenv.cfg": "", ".venv/bin/python": "", "other/pyvenv.cfg": ""})
    for text in ("/w/src/.venv/bin/python", "~/src/.venv/bin/python", f"{source}/.venv/bin/python", ".venv/bin/python"):
        for host in (Host("a", "a", python=text), Host("a", "a", activate=f"export A=1; . {text}")):
            assert files(scan(source, hosts=[host], places=["/w/src"])) == {".venv/pyvenv.cfg", ".venv/bin/python"}
    for text in ("/opt/my.venv/bin/python", "/opt/other/.venv/bin/python", "/usr/bin/python3"):
        assert not files(scan(source, hosts=[Host("a", "a", python=text)], places=["/w/src"]))
    fill(source, {".fleetignore": "!other/\n"})
    assert files(scan(source)) == {"other/pyvenv.cfg"}


def test_identity_files_stay_here(source: Path, home: Path) -> None:
    fill(source, {"lab.identity": "short", "a.py": ""})
    tree = scan(source, hosts=[Host("a", "a", identity_file=str(source / "lab.identity"))])
    assert files(tree) == {"a.py"} and "identity file lab.identity" in tree.notices[0]
    assert tree.excluded([("lab.identity", "f")]) == {"lab.identity"}


def test_a_password_file_that_was_used_once_stays_here(source: Path) -> None:
    fill(source, {"pw": "secret", "a.py": ""})
    (source / "pw").chmod(0o600)
    (source.parent / "hostfile").write_text(f"a address=127.0.0.1 port={free_port()}\n")
    words = ["-i", f"{source.parent}/hostfile", "--connect-timeout", "1", "setup-ssh", "--tofu", "--password-file"]
    code = typed([*words, str(source / "pw")])
    assert code != 0  # nobody there
    tree = scan(source)
    assert files(tree) == {"a.py"} and "pw" in tree.notices[0]


def test_a_home_folder_is_refused(home: Path, tmp_path: Path) -> None:
    fill(home, {"work/a.py": "", ".ssh/id": KEY})
    for source in (home, tmp_path, Path("/")):
        with pytest.raises(UsageError) as caught:
            scan(source)
        assert caught.value.hint and "fleet sync ~/" in caught.value.hint
    with pytest.raises(UsageError):
        scan(tmp_path, everything=True)
    assert files(scan(home, everything=True)) == {"work/a.py"}
    assert files(scan(home / "work")) == {"a.py"}


# -- links ------------------------------------------------------------------------------------------------------
@pytest.fixture
def linked(source: Path, tmp_path: Path) -> Path:
    """A source with every kind of link, and what they lead to beside it."""
    fill(
        tmp_path / "out",
        {"big.bin": "0123456789", "data/a.txt": "a", "data/.ssh/id": KEY, "data/k.pem": KEY, ".git/config": ""},
    )
    (tmp_path / "out/data/up").symlink_to("..")
    (tmp_path / "out/data/more").symlink_to("../big.bin")
    (tmp_path / "out/data/a2").symlink_to("a.txt")
    fill(source, {"a.py": "", "in/b.py": "", ".gitignore": "*.log\n", "x.log": ""})
    for name, target in {
        "good": "in/b.py",
        "gone": "nowhere",
        "off": "/nowhere",
        "folder": "in",
        "in/up": "../a.py",
        "file": "../out/big.bin",
        "dir": str(tmp_path / "out/data"),
        "ignored": "x.log",
        "key": "../out/data/k.pem",
        "me": "..",
        "config": "../out/.git/config",
    }.items():
        (source / name).symlink_to(target)
    return source


def test_links_to_what_is_not_sent_are_named(linked: Path) -> None:
    tree = scan(linked)
    assert {path for path, _ in tree.unsafe_links} == {"file", "dir", "ignored", "key", "me", "config"}
    (notice,) = tree.notices
    assert "--copy-unsafe-links" in notice and "and 3 more" in notice


def test_copy_unsafe_links_sends_what_they_lead_to(linked: Path) -> None:
    tree = scan(linked, copy_unsafe_links=True)
    kinds = {entry[0]: entry[1] for entry in tree.entries}
    assert kinds["file"] == "f" and kinds["dir"] == "d" and kinds["dir/a.txt"] == "f" and kinds["dir/more"] == "f"
    assert kinds["dir/a2"] == kinds["good"] == kinds["folder"] == kinds["in/up"] == kinds["gone"] == "l"
    assert kinds["key"] == kinds["me"] == kinds["dir/up"] == kinds["config"] == "l"  # never a key, nothing without end
    assert not {"dir/.ssh", "dir/k.pem"} & kinds.keys()
    assert {path for path, _ in tree.unsafe_links} == {"ignored", "key", "me", "config"}
    assert tree.file_digest("file") == tree.file_digest("dir/more")


def test_fleetignore_brings_back_what_lies_beside_tracked_files_in_an_ignored_folder(source: Path) -> None:
    fill(source, {".gitignore": "out/\n", ".fleetignore": "!keep/\n", "out/keep/new": "1", "out/keep/known": "2"})
    fill(source, {"out/other": "3"})
    for words in (["init", "-q"], ["add", "-f", "out/keep/known"]):
        subprocess.run(["git", *words], cwd=source, check=True)
    assert {path for path in scan(source).by_path if "out" in path} == {"out/keep/new", "out/keep/known"}
