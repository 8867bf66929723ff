"""Hosts of a sync are connected while its source is still being read."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from fleet.model import Host
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.program import Program


class Ahead:
    """Hosts are connected, and their programs loaded, while the source is still being read; as many as may be at
    once."""

    def __init__(self, hosts: Sequence[Host], runtime: Runtime) -> None:
        self._transport, self._cancel = runtime.transport, Cancel()
        self._forget = runtime.cancel.on_set(self._cancel.set)
        self._pool = ThreadPoolExecutor(max(1, runtime.fanout), thread_name_prefix="ahead")
        self._begun = {host.name: self._pool.submit(self._begin, host) for host in hosts[: runtime.fanout]}

    def _begin(self, host: Host) -> tuple[Session, Program]:
        session = self._transport.connect(host, self._cancel)
        try:
            return session, Program(session, "delivery.code_sync", None)
        except BaseException:
            session.close()
            raise

    def take(self, host: Host) -> tuple[Session, Program]:
        """Raises what connect() does."""
        begun = self._begun.pop(host.name, None)
        return begun.result() if begun else self._begin(host)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_error: object) -> None:
        """Ends what no caller took."""
        self._forget()
        self._cancel.set()
        for begun in self._begun.values():
            begun.add_done_callback(_leave)
        self._pool.shutdown(wait=False)


def _leave(begun: Future[tuple[Session, Program]]) -> None:
    if begun.exception() is None:
        session, program = begun.result()
        program.close()
        session.close()
