"""Channels of this machine itself, as channels of ssh are."""

from __future__ import annotations

import shutil
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import ConnectError
from fleet.transport.program import Program, last_message
from fleet.transport.shell import stdin_eaten
from fleet.transport.streams import STDERR_BYTES, Streams
from tests.hostile import HOST
from tests.in_process import session_here


def test_a_channel_that_another_thread_closes_reads_as_ended() -> None:
    channel = session_here().start("cat")
    assert channel.recv(0.0) is None
    channel.close()
    assert channel.recv(0.1) == b"" and channel.wait(30.0) is not None


def test_closing_what_another_thread_has_seen_end(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = session_here().start("exec sleep 1000")

    def reaped_meanwhile(channel: Any, timeout: float) -> None:
        channel._process.kill()
        channel._process.wait()

    monkeypatch.setattr(type(channel), "wait", reaped_meanwhile)
    channel.close()  # there is nobody to be signalled any more


def test_what_a_process_says_on_stderr_as_it_ends_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says it in the moment between two looks of the reader: at its pipes, and whether it lives."""
    channel = session_here().start("exec >&-; read -r line; echo last >&2")
    is_alive = channel._process.poll

    def ends_now() -> int | None:
        with suppress(ConnectError):
            channel.send(b"\n")
        channel._process.wait(60)
        return is_alive()

    monkeypatch.setattr(channel._process, "poll", ends_now)
    while channel.recv(1.0) != b"":
        pass
    assert channel.recv_stderr() == b"last\n"
    channel.close()


class Chatty(Streams):
    """Of a process whose stderr never pauses, and whose stdout says nothing."""

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        return b"", b"no end of it\n"


def test_what_says_things_on_stderr_without_a_pause_holds_no_reader() -> None:
    answers = list[bytes | None]()
    channel = Chatty(HOST)
    reader = threading.Thread(target=lambda: answers.append(channel.recv(0.05)), daemon=True)
    reader.start()
    reader.join(60.0)
    assert answers == [None], "it still reads"
    assert len(channel.recv_stderr()) <= STDERR_BYTES


def test_a_startup_file_that_is_slow_is_not_said_to_read_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", str(shutil.which("bash")))
    session = session_here()
    (tmp_path / ".bashrc").write_text("sleep 30\n")
    assert ".bashrc" not in stdin_eaten(session).message
    (tmp_path / ".bashrc").write_text("read -r line\n")
    for _ in range(20):  # on a busy machine it is not told
        if ".bashrc" in (said := stdin_eaten(session).message):
            break
    assert f"{tmp_path}/.bashrc" in said
    session.close()


def test_pings_that_a_slow_program_has_not_read_are_no_spec_of_the_next() -> None:
    spec = {"prefix": "none-", "live": True}
    with (
        closing(session_here()) as session,
        Program(session, "run.list_runs run.list_runs", spec) as program,
    ):
        for _ in range(3):  # while it starts
            program.ping()
        last_message(program, dict[str, Any])
        program.go_on(spec)
        assert last_message(program, dict[str, Any])["event"] == "runs"
