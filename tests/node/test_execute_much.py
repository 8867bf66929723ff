"""Whatever hosts print: this machine's memory and disk are not theirs to fill, and not a byte is changed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fleet.cli.screen import folded, output
from fleet.errors import LimitError
from fleet.model import Host, Inventory, Report, Result, Text
from fleet.ops import execute
from fleet.requests.hosts import Exec
from fleet.runtime import Runtime
from fleet.spool import BLOCK, HELD_ALL, HELD_EACH, Spool, Spooled, Stream
from fleet.transport.local import LocalTransport
from tests.peak import LIMIT_MIB, peak_of

FLEET = str(Path(sys.executable).with_name("fleet"))
MUCH = 60 << 20
SAY = f"head -c {MUCH} /dev/zero | tr '\\0' 'y'"


@pytest.fixture
def hosts(tmp_path: Path) -> str:
    path = tmp_path / "hostfile"
    path.write_text("".join(f"n{n}\n" for n in range(6)))
    return str(path)


@pytest.mark.parametrize(
    "more", [[], *(pytest.param([it], marks=pytest.mark.slow) for it in ("--json", "--no-fold"))], ids=" ".join
)
def test_six_hosts_that_print_sixty_mib_each(hosts: str, more: Sequence[str]) -> None:
    assert peak_of(FLEET, "-i", hosts, "--transport", "local", "exec", *more, "--shell", SAY) < LIMIT_MIB


def test_the_document_is_what_it_would_be_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    said = [b"", b"same\n", '\u00e9\U0001f600"\\\x00\x1b\n'.encode() * 300_000, b"\xff\xc3" * 100_000, b"x" * 70_000]
    spool = Spool()
    kept = []
    for data in said:
        stream = Stream(spool)
        for at in range(0, len(data), 65_537):
            stream.add(data[at : at + 65_537])
        kept.append(stream.whole())
    assert [isinstance(data, Spooled) for data in kept] == [False, False, True, False, False]
    assert [bytes(data) for data in kept] == said and list(map(len, kept)) == list(map(len, said))
    results = tuple(Result(f"n{i}", True, 0, data, data) for i, data in enumerate(kept))
    output.write_json(Report("exec", results, 0, {"more": [Text(kept[2])]}).as_json())
    out = capsys.readouterr().out
    document = json.loads(out)
    for i, data in enumerate(said):
        assert (
            document["hosts"][f"n{i}"]["stdout"]
            == document["hosts"][f"n{i}"]["stderr"]
            == data.decode("utf-8", "replace")
        )
    assert document["more"] == [said[2].decode()] and out.endswith("}\n")


def test_large_outputs_are_folded_by_what_is_in_them(hosts: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    big = b"y\n" * HELD_EACH
    spool, results = Spool(), []
    for name, data in (("n0", big), ("n1", b"small"), ("n2", big), ("n3", big[:-2] + b"z\n")):
        stream = Stream(spool)
        stream.add(data)
        results.append(Result(name, True, 0, stream.whole()))
    folded.write_folded(results, "stdout")
    told = capfdbinary.readouterr().out
    assert told.count(b"---\n") == 3 and b"n[0,2] (2)" in told
    assert hashlib.sha256(told.partition(b"---\n")[2][: len(big)]).digest() == hashlib.sha256(big).digest()


def test_an_output_in_memory_is_folded_with_the_same_one_that_is_not(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    big, spool, results = b"y\n" * BLOCK, Spool(), []
    for name, held in (("n0", 0), ("n1", HELD_ALL)):
        stream = Stream(spool)
        spool.held = held
        stream.add(big)
        results.append(Result(name, True, 0, stream.whole()))
    assert [type(result.stdout) for result in results] == [bytes, Spooled]
    folded.write_folded(results, "stdout")
    assert b"n[0-1] (2)" in capfdbinary.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_disk_without_room_ends_the_command_and_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", tmp_path], check=True)
    try:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        inventory = Inventory((Host("n1", "127.0.0.1"),))
        report = execute.run(execute.plan(inventory, Exec(shell="yes")), Runtime(LocalTransport()))
        error = report.results[0].error
        assert isinstance(error, LimitError) and str(tmp_path) in error.message and error.hint
        assert report.exit_code == 125 and list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
