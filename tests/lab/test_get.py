"""`fleet get`: files of the nodes on the head, verified, going on where an earlier attempt ended."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.test_launch import until
from tests.lab.virtual_lab import VirtualLab

MAKE = (
    "mkdir -p ~/out/sub && cd ~/out && hostname > name && dd if=/dev/urandom of=weights bs=1M count=3 && ln -sfn name l"
)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def there(lab: VirtualLab, host: str, folder: str) -> dict[str, str]:
    said = lab.sh(host, f"cd {folder} && find -L . -type f -exec sha256sum {{}} +")
    return {name.removeprefix("./"): digest for digest, name in (line.split("  ") for line in said.splitlines())}


def held_by(stage: Path) -> int:
    """Bytes that have come so far."""
    try:
        return sum(path.lstat().st_blocks * 512 for path in stage.iterdir())
    except FileNotFoundError:
        return 0


def get(lab: VirtualLab, *words: str) -> dict[str, Any]:
    return dict(json.loads(lab.fleet("-i", "lab", "--json", "get", *words, check=True).stdout))


def test_a_folder_of_each_host_or_one_tree(lab: VirtualLab, tmp_path: Path) -> None:
    lab.enrol()
    for host in lab.names:
        lab.sh(host, MAKE)
    lab.sh(lab.names[2], "head -c 100 /dev/urandom > '/root/only here'")
    said = get(lab, "~/out", "--to", str(tmp_path / "all"))["hosts"]
    for host in lab.names:
        folder = tmp_path / "all" / host / "out"
        assert said[host]["files"] == 2 and said[host]["to"] == str(folder)
        assert digests(folder) == there(lab, host, "~/out") and os.readlink(folder / "l") == "name"
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == lab.names, "nothing of the stage is left"

    said = get(lab, "~/only here", "--to", str(tmp_path / "one"))["hosts"]
    assert (tmp_path / "one/only here").stat().st_size == 100
    assert [said[host]["files"] for host in lab.names] == [0, 0, 1, 0]
    none = lab.fleet("-i", "lab", "get", "~/nothing", "--to", str(tmp_path))
    assert none.returncode == 2 and "no host has ~/nothing" in none.stderr


def test_an_interrupted_get_goes_on_and_holes_are_not_sent(lab: VirtualLab, tmp_path: Path) -> None:
    lab.enrol()
    host, folder = lab.names[0], tmp_path / "to"
    lab.sh(host, "rm -rf ~/big && mkdir ~/big && cd ~/big && truncate -s 64M holes && echo end >> holes")
    lab.sh(host, "cd ~/big && head -c 24000000 /dev/urandom > last")
    words = ("-i", "lab", "-w", host, "get", "~/big", "--to", str(folder))
    lab.fleet("lab", "link", host, "40mbit", check=True)
    stage = folder / ".fleet-get" / host
    for size in (1_000_000, 8_000_000):
        process = lab.popen(*words)
        until(lambda size=size, process=process: process.poll() is not None or held_by(stage) > size)  # type: ignore[misc]
        process.kill()
        process.communicate()
    lab.fleet("lab", "link", host, "none", check=True)
    lab.fleet(*words, check=True)
    assert digests(folder / "big") == there(lab, host, "~/big")
    assert (folder / "big/holes").stat().st_blocks * 512 < 1 << 20, "holes stay holes"
    lab.sh(host, "rm -rf ~/big")


def test_what_a_run_wrote(lab: VirtualLab, tmp_path: Path) -> None:
    """With times that were kept, too; nothing that was there, and nothing that a sync put there since."""
    lab.enrol()
    for host in lab.names:
        lab.sh(host, "mkdir -p ~/wrote/was && cd ~/wrote && echo old > old && touch -d '2 days ago' old")
        lab.sh(host, "cd ~/wrote && ln -s old former && touch -h -d '2 days ago' former && cp old was/")
        lab.sh(host, "mkdir -p ~/elsewhere/set && cd ~/elsewhere && cp -p ../wrote/old set/in && tar cf t.tar set")
        lab.sh(host, "touch -d '2 days ago' ~/elsewhere/set")
    line = "test $RANK != 0 || { echo weights > best.pt; ln -s best.pt last.pt; cp -p old copy; mkdir -p empty/deep;"
    line += (
        "cp -p old x; mv x moved; tar xf ~/elsewhere/t.tar; mv ~/elsewhere/set folder; ln -s ~/elsewhere/t.tar out; }"
    )
    launched = ("launch", "--engine", "command", "--workdir", "~/wrote", "--name", "wrote", "sh", "-c", line)
    lab.fleet("-i", "lab", *launched, cwd=tmp_path, check=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/later.py").write_text("of the head")
    lab.fleet("-i", "lab", "sync", str(tmp_path / "code"), "--to", "~/wrote", check=True)
    done = lab.fleet("-i", "lab", "get", "wrote", "--from", lab.names[0], "--to", str(tmp_path / "back"), check=True)
    back = tmp_path / "back/wrote"
    found = sorted(str(path.relative_to(back)) for path in back.rglob("*"))
    new = ["best.pt", "copy", "empty", "empty/deep", "folder", "folder/in", "last.pt", "moved", "out", "set", "set/in"]
    assert found == new and (back / "best.pt").read_text() == "weights\n"
    assert (back / "last.pt").readlink() == Path("best.pt") and (back / "moved").read_text() == "old\n"
    assert "links to what is not sent: out -> /root/elsewhere/t.tar" in done.stderr.replace("\n", " ")
    words = ("--from", lab.names[0], "--to", str(tmp_path / "again"), "--copy-unsafe-links")
    lab.fleet("-i", "lab", "get", "wrote", *words, check=True)
    assert (tmp_path / "again/wrote/out").stat().st_size > 1024 and not (tmp_path / "again/wrote/out").is_symlink()


AHEAD = """#!{python}
import time
real = time.time
time.time = lambda: real() + {seconds}
from fleet.__main__ import main
main()
"""


@pytest.mark.slow
def test_a_head_whose_clock_is_ahead_leaves_nothing_of_a_run_out(lab: VirtualLab, tmp_path: Path) -> None:
    """And "latest" is the run that was launched last, not the one whose time says so."""
    lab.enrol()
    for host in lab.names[:2]:
        lab.sh(host, "mkdir -p ~/clocks && echo old > ~/clocks/old && touch -d '1 hour ago' ~/clocks/old")
    ahead = tmp_path / "ahead"
    ahead.write_text(AHEAD.format(python=sys.executable, seconds=300))
    ahead.chmod(0o755)
    head = dataclasses.replace(lab, program=str(ahead))
    words = ("-i", "lab", "launch", "-w", ",".join(lab.names[:2]), "--engine", "command", "--workdir", "~/clocks")
    head.fleet(*words, "--name", "first", "sh", "-c", "echo 1 > one$RANK", cwd=tmp_path, check=True)
    for fleet in (head.fleet, lab.fleet):
        to = tmp_path / f"of-{fleet is lab.fleet}"
        fleet("-i", "lab", "get", "latest", "--to", str(to), cwd=tmp_path, check=True)
        found = sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.is_file())
        assert found == [f"{host}/clocks/one{rank}" for rank, host in enumerate(lab.names[:2])]
    lab.fleet(*words, "--name", "second", "sh", "-c", "echo 2 > two$RANK", cwd=tmp_path, check=True)
    done = lab.fleet("-i", "lab", "get", "latest", "--to", str(tmp_path / "last"), cwd=tmp_path, check=True)
    assert "latest is run second-" in done.stderr
    assert not list((tmp_path / "last").rglob("one*")) and len(list((tmp_path / "last").rglob("two*"))) == 2


def test_a_run_of_which_a_host_is_silent_comes_into_folders_of_hosts(lab: VirtualLab, tmp_path: Path) -> None:
    lab.enrol()
    one, two = lab.names[:2]
    for host in (one, two):
        lab.sh(host, "mkdir -p ~/pair")
    words = ("launch", "-w", f"{one},{two}", "--engine", "command", "--workdir", "~/pair", "--name", "pair")
    lab.fleet("-i", "lab", *words, "sh", "-c", "echo theirs > f", cwd=tmp_path, check=True)
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair/f").write_text("mine")
    lab.stop_sshd(two)
    try:
        done = lab.fleet("-i", "lab", "-w", f"{one},{two}", "get", "pair", cwd=tmp_path)
    finally:
        lab.start_sshd(two)
    assert done.returncode == 122 and (tmp_path / "pair/f").read_text() == "mine"
    assert (tmp_path / one / "pair/f").read_text() == "theirs\n"
