"""`fleet sync --image` and what `fleet check` finds of images, with a real podman on the head and on each host."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.test_documents import SHOWN, unlike
from tests.lab.virtual_lab import VirtualLab

pytestmark = pytest.mark.slow
NAME = "train:1"
STORAGE = "[storage]\ndriver = 'vfs'\ngraphroot = '{0}/graph'\nrunroot = '{0}/run'\n"
LEFT = "find /root/.fleet/images -type f -o -name '*image.tar*' 2>/dev/null"


@pytest.fixture(scope="module")
def lab(breakable: BreakableLab) -> VirtualLab:
    for name in breakable.names:
        breakable.sh(name, "mkdir -p /var/lib/containers && mount -t tmpfs none /var/lib/containers")
    return breakable.enrol()


@pytest.fixture(scope="module")
def head(lab: VirtualLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Returns the environment in which this machine's podman has a storage of its own, and the image in it."""
    folder = tmp_path_factory.mktemp("podman")
    (folder / "storage.conf").write_text(STORAGE.format(folder))
    env = {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}
    (folder / "layer").mkdir()
    (folder / "layer/blob").write_bytes(os.urandom(3_000_000))
    line = f"tar -C layer -c . | podman import -q - {NAME}"
    subprocess.run(["sh", "-c", line], cwd=folder, env=os.environ | env, check=True, capture_output=True)
    yield env
    subprocess.run(["podman", "rmi", "-a", "-f"], env=os.environ | env, check=True, capture_output=True)


def sync(lab: VirtualLab, *args: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = lab.fleet("-i", "lab", "--json", "sync", "--image", *args, env=env)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def states(document: dict[str, Any]) -> list[str]:
    return [host["state"] if host["ok"] else host["error"]["message"] for host in document["hosts"].values()]


def without(lab: VirtualLab, *names: str) -> None:
    for name in names or lab.names:
        lab.sh(name, "podman rmi -a -f")


def findings(lab: VirtualLab) -> list[str]:
    inventory = lab.inventory.with_name("images.yaml")
    inventory.write_text(lab.inventory.read_text().replace("defaults: {", f'defaults: {{container: "{NAME}", '))
    found = json.loads(lab.fleet("-i", str(inventory), "--json", "check").stdout)["findings"]
    return [f"{each['id']}: {each['message']}" for each in found if each["id"].startswith(("container", "data"))]


def test_an_image_is_sent_once_and_check_compares_it(lab: VirtualLab, head: dict[str, str]) -> None:
    first = sync(lab, NAME, env=head)
    assert states(first) == ["loaded"] * 4 and first["sent"] > 3_000_000
    assert unlike(json.loads(SHOWN["fleet --json sync --image train:1"]), first) == []
    assert {lab.sh(name, f"podman image inspect -f {{{{.Id}}}} {NAME}") for name in lab.names} == {first["id"]}
    assert [lab.sh(name, LEFT, check=False) for name in lab.names] == [""] * 4
    assert not list((lab.home / ".fleet/images").rglob("image.tar"))
    again = sync(lab, NAME, env=head)
    assert states(again) == ["there"] * 4 and again["sent"] == 0
    assert findings(lab) == []
    without(lab, lab.names[1])
    assert findings(lab) == [f"container-missing: {lab.names[1]}: podman does not have image {NAME}"]
    lab.sh(lab.names[1], f"echo x > /tmp/x; tar -C /tmp -c x | podman import -q - {NAME}")
    (differs,) = findings(lab)
    assert differs.startswith(f"container-image: {lab.names[1]}: the container image {NAME} differs: sha256 ")
    assert sorted(states(sync(lab, NAME, env=head))) == ["loaded", "there", "there", "there"]
    assert findings(lab) == []
    lab.sh(lab.names[1], f"podman tag {NAME} other:2 && podman rmi {NAME}")
    named = sync(lab, NAME, env=head)
    assert sorted(states(named)) == ["loaded", "there", "there", "there"] and named["sent"] == 0


@pytest.mark.parametrize("kind", ["docker-archive", "oci-archive"])
def test_an_archive(lab: VirtualLab, head: dict[str, str], tmp_path: Path, kind: str) -> None:
    without(lab)
    archive = tmp_path / "train.tar"
    argv = ["podman", "save", "-q", "--format", kind, "-o", str(archive), NAME]
    subprocess.run(argv, env=os.environ | head, check=True, capture_output=True)
    assert states(sync(lab, str(archive))) == ["loaded"] * 4
    assert states(sync(lab, str(archive))) == ["there"] * 4
    assert archive.exists()


def test_the_next_sync_removes_what_a_killed_one_left(lab: VirtualLab, head: dict[str, str]) -> None:
    without(lab)
    slow = '#!/bin/sh\n[ $1 != load ] || sleep 60\nexec /usr/bin/podman "$@"\n'
    lab.sh(lab.names[1], f"mkdir -p /usr/local/bin; printf '%s' '{slow}' >/usr/local/bin/podman")
    lab.sh(lab.names[1], "chmod +x /usr/local/bin/podman")
    killed = lab.popen("-i", "lab", "sync", "--image", NAME, env=head)
    loaded = f"timeout 60 sh -c 'until /usr/bin/podman image exists {NAME}; do sleep 0.1; done'"
    try:
        lab.sh(lab.names[0], loaded)
    finally:
        killed.kill()
        killed.communicate()
        lab.sh(lab.names[1], "rm /usr/local/bin/podman")
    assert "image.tar" in lab.sh(lab.names[0], LEFT) and list((lab.home / ".fleet/images").rglob("image.tar"))
    again = sync(lab, NAME, env=head)
    assert states(again)[:2] == ["there", "loaded"] and again["sent"] < 3_000_000
    assert [lab.sh(name, LEFT, check=False) for name in lab.names] == [""] * 4
    assert not list((lab.home / ".fleet/images").rglob("image.tar"))


def test_of_a_host_past_a_podman_that_hangs_and_a_host_without(lab: VirtualLab, head: dict[str, str]) -> None:
    without(lab)
    one, two, three, four = lab.names
    refused = sync(lab, NAME, "--from", one)
    assert refused["error"]["message"] == f"host {one}: podman does not have image {NAME}"
    lab.sh(one, f"echo x > /tmp/x; tar -C /tmp -c x | podman import -q - {NAME}")
    lab.sh(three, "mkdir -p /usr/local/bin; printf '#!/bin/sh\\nsleep 600\\n' >/usr/local/bin/podman")
    lab.sh(three, "chmod +x /usr/local/bin/podman")
    lab.sh(four, "rm -f /usr/bin/podman /usr/bin/docker /usr/local/bin/docker")
    done = sync(lab, NAME, "--from", one)
    assert states(done) == [
        "loaded",
        "podman does not answer: no answer within 10 s",
        f"no container runtime for image {NAME}",
    ]
    assert [host["error"] and host["error"]["hint"] for host in done["hosts"].values()] == [
        None,
        "try it there: /usr/local/bin/podman images",
        "there: apt install podman crun",
    ]
    assert [lab.sh(name, "find /root/.fleet/images -type f", check=False) for name in (two, three, four)] == [""] * 3
    assert findings(lab) == [
        f"container-runtime: {four}: there is no container runtime for image {NAME}",
        f"container-silent: {three}: the container runtime does not answer: no answer within 10 s",
    ]
