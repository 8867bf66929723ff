"""Archives of `fleet sync --image FILE.tar`, and names of images."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UsageError
from fleet.ops.images import read_archive
from fleet.requests.sync import SyncImage

ID = "ab" * 32
CONFIG = {"config": {"digest": f"sha256:{ID}"}}


def index(**more: Any) -> dict[str, Any]:
    return {"digest": "sha256:x", "annotations": {"org.opencontainers.image.ref.name": "train:1"}, **more}


def archive(path: Path, files: dict[str, Any]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, value in files.items():
            data = json.dumps(value).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    "files",
    [
        {"manifest.json": [{"Config": f"{ID}.json", "RepoTags": ["train:1"]}]},
        {"manifest.json": [{"Config": f"blobs/sha256/{ID}", "RepoTags": ["train:1", "b:2"]}]},
        {"index.json": {"manifests": [index()]}, "blobs/sha256/x": CONFIG},
    ],
)
def test_the_name_and_the_id_in_an_archive(tmp_path: Path, files: dict[str, Any]) -> None:
    assert read_archive(archive(tmp_path / "a.tar", files)) == ("train:1", ID)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"manifest.json": []},
        {"manifest.json": [{"Config": f"{ID}.json", "RepoTags": None}]},
        {"manifest.json": [{"Config": f"{ID}.json", "RepoTags": ["--privileged"]}]},
        {"manifest.json": [{"Config": f"{ID}.json", "RepoTags": ["a b"]}]},
        {"manifest.json": [{"Config": "../../etc", "RepoTags": ["train:1"]}]},
        {"manifest.json": [{"Config": f"{ID}.json", "RepoTags": ["a"]}] * 2},
        {"manifest.json": "x" * (1 << 20)},
        {"index.json": {"manifests": [index(annotations={})]}, "blobs/sha256/x": CONFIG},
        {"index.json": {"manifests": [index(), index()]}, "blobs/sha256/x": CONFIG},
    ],
)
def test_what_is_no_archive_of_one_image(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read_archive(archive(tmp_path / "a.tar", files))


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\nb", "a\x1b", "x" * 600])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(UsageError):
        SyncImage(image=name)
