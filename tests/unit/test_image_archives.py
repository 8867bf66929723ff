"""Archives of `fleet sync --image FILE.tar`, which may be a stranger's, and names of images."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UsageError
from fleet.ops.images import read_file
from fleet.requests.sync import SyncImage
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport

NAME = "org.opencontainers.image.ref.name"


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def sha(value: Any) -> str:
    return hashlib.sha256(text(value)).hexdigest()


CONFIG = {"rootfs": {"diff_ids": []}}
ID = sha(CONFIG)
MANIFEST = {"config": {"digest": f"sha256:{ID}"}}
MID = sha(MANIFEST)
ATTEST: dict[str, Any] = {"digest": "sha256:" + "0" * 64, "annotations": {"vnd.docker.reference.type": "attestation"}}
INDEX = {"manifests": [{"digest": f"sha256:{MID}"}, ATTEST]}
IID = sha(INDEX)


def docker(**more: Any) -> list[dict[str, Any]]:
    return [{"Config": f"{ID}.json", "RepoTags": ["train:1"], **more}]


def index(digest: str = MID, **more: Any) -> dict[str, Any]:
    return {"manifests": [{"digest": f"sha256:{digest}", "annotations": {NAME: "train:1"}, **more}]}


OF_DOCKER = {f"{ID}.json": CONFIG}
OF_OCI = {f"blobs/sha256/{ID}": CONFIG, f"blobs/sha256/{MID}": MANIFEST, f"blobs/sha256/{IID}": INDEX}


def archive(path: Path, files: dict[str, Any]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, value in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text(value))
            tar.addfile(info, io.BytesIO(text(value)))
    return path


def read(path: Path) -> tuple[str, dict[str, Any]]:
    return read_file(path, Runtime(LocalTransport()))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("files", "manifests"),
    [
        ({"manifest.json": docker(), **OF_DOCKER}, ()),
        ({"manifest.json": docker(Config=f"blobs/sha256/{ID}", RepoTags=["train:1", "b:2"]), **OF_OCI}, ()),
        ({"index.json": index(), **OF_OCI}, (MID,)),
        ({"index.json": index(IID), **OF_OCI}, (IID, MID)),
        ({"manifest.json": docker(Config=f"blobs/sha256/{ID}"), "index.json": index(IID), **OF_OCI}, (IID, MID)),
    ],
)
def test_the_name_and_every_id_of_an_archive(tmp_path: Path, files: dict[str, Any], manifests: tuple[str, ...]) -> None:
    path = archive(tmp_path / "a.tar", files)
    wanted = ("train:1", {ID: "config", **dict.fromkeys(manifests, "manifest")})
    assert read(path) == wanted
    (tmp_path / "a.tgz").write_bytes(gzip.compress(path.read_bytes()))
    assert read(tmp_path / "a.tgz") == wanted


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"manifest.json": []},
        {"manifest.json": docker(RepoTags=None), **OF_DOCKER},
        {"manifest.json": docker(RepoTags=["--privileged"]), **OF_DOCKER},
        {"manifest.json": docker(RepoTags=["a b"]), **OF_DOCKER},
        {"manifest.json": docker(RepoTags=["../x.sif"]), **OF_DOCKER},
        {"manifest.json": docker(Config="../../etc"), **OF_DOCKER},
        {"manifest.json": docker()},
        {"manifest.json": docker(), f"{ID}.json": "an id that its content does not have"},
        {"manifest.json": docker() * 2, **OF_DOCKER},
        {"manifest.json": "x" * (1 << 20)},
        {"index.json": index(annotations={}), **OF_OCI},
        {"index.json": index("ab" * 32), "blobs/sha256/" + "ab" * 32: MANIFEST},
        {"index.json": {"manifests": [*index()["manifests"], *index(IID)["manifests"]]}, **OF_OCI},
    ],
)
def test_what_is_no_archive_of_one_image(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read(archive(tmp_path / "a.tar", files))


def entry(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info.tobuf()


def packed(*parts: bytes, zeros: int = 0) -> bytes:
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as out:
        for part in parts:
            out.write(part)
        for _ in range(zeros >> 20):
            out.write(bytes(1 << 20))
    return file.getvalue()


LARGE = 10 << 30
STRANGE: dict[str, Callable[[], bytes]] = {
    "a manifest of 10 GB": lambda: entry("manifest.json", LARGE),
    "a header of 10 GB": lambda: entry("x", LARGE, tarfile.XHDTYPE) + b"1",
    "a name of 200 MB": lambda: packed(entry("x", 200 << 20, tarfile.GNUTYPE_LONGNAME), zeros=200 << 20),
    "a layer that unpacks to a thousand times its size": lambda: packed(entry("layer", 400 << 20), zeros=400 << 20),
    "entries without end": lambda: packed(entry("x") * 300_000),
    "a link": lambda: entry("manifest.json", kind=tarfile.SYMTYPE, link="/etc/passwd") + bytes(1024),
    "a link to itself": lambda: entry("manifest.json", kind=tarfile.LNKTYPE, link="manifest.json") + bytes(1024),
    "no gzip": lambda: b"\x1f\x8b\x08" + bytes(7) + os.urandom(3000),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("what", STRANGE)
def test_an_archive_of_a_stranger_takes_little(tmp_path: Path, what: str) -> None:
    (tmp_path / "a.tar.gz").write_bytes(STRANGE[what]())
    tracemalloc.start()
    with pytest.raises(UsageError):
        read(tmp_path / "a.tar.gz")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 192 << 20


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.tar")
    for name in ("fifo.tar", "missing.tar", "."):
        with pytest.raises(UsageError):
            read(tmp_path / name)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\nb", "a\x1b", "x" * 600, f"registry:5000/a@sha256:{ID}"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(UsageError):
        SyncImage(image=name)


def test_a_name_of_a_registry_with_a_port() -> None:
    assert SyncImage(image="registry:5000/team/train:1").image == "registry:5000/team/train:1"
