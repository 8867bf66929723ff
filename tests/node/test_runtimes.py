"""The container runtimes of a node: which has an image, by its id; what is not known is no "no"."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from fleet.node.base.errors import Refused
from fleet.node.base.files import file_digest
from fleet.node.delivery import image
from fleet.node.facts import runtimes

ID = "ab" * 32
HAS = f"echo sha256:{ID}"
LACKS = 'case "$*" in "image inspect"*) exit 125;; images*) exit 0;; esac'
BROKEN = "echo no daemon is running >&2; exit 1"
HANGS = "exec sleep 60"
RAVES = "head -c 3000000 /dev/zero | tr '\\0' x; echo"


def node(folder: Path, **programs: str) -> dict[str, str]:
    """Returns the environment of a node that has these programs, each a line of shell."""
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{line}\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("programs", "runtime", "found"),
    [
        ({"podman": HAS, "docker": BROKEN}, "podman", ID),
        ({"podman": LACKS, "docker": HAS}, "docker", ID),
        ({"podman": LACKS, "docker": BROKEN}, "podman", None),
        ({"docker": LACKS}, "docker", None),
        ({"docker": BROKEN}, "docker", "no daemon is running"),
        ({"podman": HANGS}, "podman", "no answer within 1 s"),
        ({"podman": HANGS, "docker": HAS}, "docker", ID),
        ({"docker": f"echo 'sha256:{ID} [train@sha256:{ID}]'"}, "docker", ID),
        ({"podman": RAVES}, "podman", "exit status -13"),
        ({"podman": "echo ../../etc"}, "podman", "it prints no image id"),
        ({"apptainer": HAS}, None, None),
    ],
)
def test_the_first_runtime_that_has_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, str], runtime: str | None, found: str | None
) -> None:
    seconds = 1.0 if len(programs) == 1 else 5.0  # for the other one to answer, on a busy machine
    monkeypatch.setattr(runtimes, "SECONDS", seconds if HANGS in programs.values() else 60.0)
    answer = runtimes.find("train:1", node(tmp_path, **programs))
    if runtime is None:
        assert answer is None
        with pytest.raises(Refused, match="no container runtime for image train:1"):
            runtimes.require("train:1", node(tmp_path))
        return
    assert answer and answer["runtime"] == runtime and answer["path"] == str(tmp_path / runtime)
    assert answer.get("id", answer.get("why")) == found
    assert answer.get("of") == ("manifest" if "@sha256:" in str(programs) else None)


def test_a_plain_file_is_of_apptainer_or_enroot(tmp_path: Path) -> None:
    env = node(tmp_path, podman=HAS, apptainer="echo apptainer version 1.3.0", enroot="echo 3.5.0")
    (tmp_path / "train.sif").write_bytes(b"an image")
    answer = runtimes.find("train.sif", env, str(tmp_path))
    assert answer and answer["runtime"] == "apptainer"
    assert answer["id"] == hashlib.sha256(b"an image").hexdigest()
    assert runtimes.find("other.sqsh", env, str(tmp_path)) == {
        "runtime": "enroot", "path": str(tmp_path / "enroot"), "image": "other.sqsh", "id": None,
    }  # fmt: skip
    asked = [runtimes.argv(name, str(tmp_path / name), "version") for name in ("apptainer", "enroot")]
    assert [runtimes.output(argv, env=env)[1] for argv in asked] == ["apptainer version 1.3.0\n", "3.5.0\n"]


def test_an_image_file_is_read_again_only_if_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not if it may have changed since without another ctime."""
    read: list[str] = []
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(runtimes, "file_digest", lambda path: read.append(path) or file_digest(path))
    image = tmp_path / "train.sif"
    image.write_bytes(b"an image")
    now = image.stat().st_ctime

    def asked(after: float) -> tuple[str, int]:
        monkeypatch.setattr(runtimes.time, "time", lambda: now + after)
        read.clear()
        return runtimes.known_digest(str(image)), len(read)

    one, other = (hashlib.sha256(text).hexdigest() for text in (b"an image", b"an Image"))
    assert [asked(after) for after in (1, 60, 60)] == [(one, 1), (one, 1), (one, 0)]
    before = image.stat()
    image.write_bytes(b"an Image")
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [asked(60), asked(60)] == [(other, 1), (other, 0)]
    (new,) = (tmp_path / "home/.fleet/images").iterdir()
    for damaged in ("damaged", "{}", json.dumps({"version": json.loads(new.read_text())["version"]})):
        new.write_text(damaged)
        assert [asked(60), asked(60)] == [(other, 1), (other, 0)]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_note_in_a_folder_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    image = tmp_path / "train.sif"
    image.write_bytes(b"an image")
    monkeypatch.setattr(runtimes.time, "time", lambda: image.stat().st_ctime + 60)
    digest = runtimes.known_digest(str(image))
    (note,) = (tmp_path / ".fleet/images").iterdir()
    note.write_text(note.read_text().replace(digest, "0" * 64))
    assert runtimes.known_digest(str(image)) == "0" * 64
    os.chown(tmp_path / ".fleet", 12345, 12345)
    assert runtimes.known_digest(str(image)) == digest


def test_argv_of_each_runtime() -> None:
    lines = [
        " ".join(runtimes.argv(name, f"/bin/{name}", what, image="train:1", file="/x.tar", id=ID))
        for name in ("podman", "docker")
        for what in ("id", "list", "save", "load", "tag")
    ]
    assert lines == [
        line
        for path in ("/bin/podman", "/bin/docker")
        for line in (
            f"{path} image inspect --format {{{{.Id}}}} {{{{.RepoDigests}}}} train:1",
            f"{path} images --quiet",
            f"{path} save --output /x.tar train:1",
            f"{path} load --input /x.tar",
            f"{path} tag {ID} train:1",
        )
    ]


# keeps NAME and ID in files; what it loads has the id in `new`, which is of a manifest where it is docker's
STORE = """case "$1 $2" in
"image inspect") for a; do :; done
    if [ "$a" = "$(cat id)" ] || { [ "$a" = train:1 ] && [ -e named ]; }; then
        echo "sha256:$(cat id) $(cat digests)"; else exit 1; fi;;
"images --quiet") ;;
"load --input") echo load >>log; cp new id; touch named;;
"tag "*) echo tag >>log; touch named;;
*) exit 9;; esac"""


@pytest.mark.parametrize(
    ("id", "named", "new", "manifest", "log"),
    [
        (ID, True, ID, False, ""),
        (ID, False, ID, False, "tag\n"),
        ("", False, ID, False, "load\n"),
        ("", False, "cd" * 32, True, "load\n"),
        ("", False, "cd" * 32, False, None),
    ],
)
def test_an_image_is_loaded_where_its_id_is_missing(
    tmp_path: Path, id: str, named: bool, new: str, manifest: bool, log: str | None
) -> None:
    for name, value in {"id": id, "new": new, "digests": f"[train@sha256:{new}]" if manifest else "[]"}.items():
        (tmp_path / name).write_text(value)
    if named:
        (tmp_path / "named").touch()
    env = node(tmp_path, podman=f"cd {tmp_path}\n{STORE}")
    if log is None:
        with pytest.raises(Refused, match="podman loaded train:1 with another id than abab"):
            image.load("train:1", "/x.tar", {ID: "config"}, env)
        return
    image.load("train:1", "/x.tar", {ID: "config"}, env)
    assert (tmp_path / "log").exists() == bool(log)
    assert not log or (tmp_path / "log").read_text() == log
