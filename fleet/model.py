"""Defines the values that all of fleet uses, as frozen dataclasses. The order of Inventory.hosts is the node-rank
order."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from fleet.codec import NOT_SERIALIZED, from_json, plain
from fleet.errors import EXIT_HOST_FAILED, EXIT_OK, FleetError
from fleet.node.base.wire import grouped as grouped
from fleet.spool import Spooled, pieces

A = TypeVar("A")


@dataclass(frozen=True)
class Host:
    """One machine of the inventory.

    name: what users, logs and JSON call it. address: where SSH goes (default: name). data_address: where training
    traffic goes, MASTER_ADDR (default: address). user/port/identity_file/proxy_jump: None means "what ~/.ssh/config
    has, else OpenSSH's default". host_key: a pinned fingerprint "SHA256:...". slots: ranks a node runs by default; None
    means one per GPU, else 1. devices: the GPU indexes that a selection left to this node, or None for all GPUs.
    python: the training interpreter. activate: a shell line run before commands. workdir: where code lives. env:
    variables for everything run there. ignore: the ids of rules that do not judge the host, with commas between.
    container: the image that training runs in, or its file.
    """

    name: str
    address: str
    data_address: str | None = None
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    host_key: str | None = None
    slots: int | None = None
    devices: tuple[int, ...] | None = None
    python: str | None = None
    activate: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ignore: str | None = None
    container: str | None = None


@dataclass(frozen=True)
class Inventory:
    """Hosts in the order they were written; `groups` map a group name to host names; `env` goes to every host.

    source: the file that the inventory came from, for messages. sync: the raw `sync:` section, interpreted by ops/sync.
    unselected: the file's hosts that a selection left out; a jump host may be one of them.
    """

    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    source: str = "<none>"
    sync: Mapping[str, Any] = field(default_factory=dict)
    unselected: tuple[Host, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(h.name for h in self.hosts)

    def host(self, name: str) -> Host:
        """Returns the host of that name. Raises KeyError if there is none."""
        return {host.name: host for host in self.hosts}[name]

    def only(self, hosts: Iterable[Host]) -> Inventory:
        """Returns the inventory with only these hosts selected. The others stay as `unselected`: a jump host may be
        one."""
        return replace(self, hosts=tuple(hosts), unselected=self.hosts + self.unselected)

    def env_for(self, host: Host) -> dict[str, str]:
        """Returns a host's variables: the inventory's, overridden by the host's own."""
        return {**self.env, **host.env}


@dataclass(frozen=True)
class Node:
    """A host that takes part in a run. local_world_size: the number of its ranks. first_rank: its lowest global
    rank."""

    host: Host
    node_rank: int
    local_world_size: int
    first_rank: int

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.local_world_size)


Kind = Literal["script", "module", "program"]


@dataclass(frozen=True)
class Job:
    """Describes what engines start, as they have prepared it. requests.launch.Launch has all else that was requested.
    args: the script's arguments.

    env: literal values; env_expand: values whose $NAME parts are expanded on the node. engine_args: options passed
    through to the engine. engine_options: name -> value of the options that the engine declares. kind: whether `script`
    is a Python script, a module or a program. files: name -> text of the files that the engine finds in the run's
    folder on each node. notes: the engine's notes on the job.
    """

    script: str
    args: tuple[str, ...] = ()
    engine: str = "torchrun"
    env: Mapping[str, str] = field(default_factory=dict)
    env_expand: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int = 0
    engine_args: tuple[str, ...] = ()
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = "script"
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


LARGE_TEXT = 1 << 16


@dataclass(frozen=True)
class Text:
    """Holds a text of a document that is too large for memory. str() returns it whole; iteration yields its pieces."""

    data: bytes | Spooled

    @classmethod
    def of(cls, data: bytes | Spooled) -> str | Text:
        return cls(data) if isinstance(data, Spooled) or len(data) > LARGE_TEXT else data.decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        yield from map(decode, pieces(self.data))
        yield decode(b"", True)

    def __str__(self) -> str:
        return "".join(self)


@dataclass(frozen=True)
class Inside:
    """Holds an answer that verbs use inside fleet, and that is no part of a JSON document."""

    value: Any


class Answering:
    """Holds an answer: a dataclass. data: the JSON that is made from it."""

    answer: object
    data: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.answer is not None:
            object.__setattr__(self, "data", {} if isinstance(self.answer, Inside) else plain(self.answer))

    def read(self, kind: type[A]) -> A:
        """Returns the answer. Raises ValueError if it is not of that class."""
        return self.answer if isinstance(self.answer, kind) else from_json(kind, self.data)


@dataclass(frozen=True)
class Result(Answering):
    """Holds what became of one host. Exactly one of these applies: ok; exit_status != 0; error. `data` is verb-specific
    JSON, made from the dataclass `answer`. An output that is too large for memory is Spooled: bytes() returns it whole,
    iteration yields its pieces."""

    host: str
    ok: bool
    exit_status: int | None = None
    stdout: bytes | Spooled = b""
    stderr: bytes | Spooled = b""
    error: FleetError | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    answer: object = field(default=None, compare=False, kw_only=True, metadata={NOT_SERIALIZED: True})

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "exit_status": self.exit_status,
            "stdout": Text.of(self.stdout),
            "stderr": Text.of(self.stderr),
            "error": self.error.as_json() if self.error else None,
            **self.data,
        }


@dataclass(frozen=True)
class Report(Answering):
    """The outcome of a verb over all hosts, in inventory order. `data` is merged into the JSON document, and is made
    from the dataclass `answer`."""

    verb: str
    results: tuple[Result, ...]
    exit_code: int
    data: Mapping[str, Any] = field(default_factory=dict)
    answer: object = field(default=None, compare=False, kw_only=True, metadata={NOT_SERIALIZED: True})

    @property
    def ok(self) -> bool:
        return self.exit_code == EXIT_OK

    def as_json(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "ok": self.ok,
            "exit_code": self.exit_code,
            "hosts": {r.host: r.as_json() for r in self.results},
            **self.data,
        }


def exit_code_of(results: tuple[Result, ...]) -> int:
    """Returns one exit code for many hosts: the code of an error of fleet's own, or else the largest remote status.

    It is never 0 if a host failed. 122 goes before 124, and 124 before the rest, so that an unreachable host shows.
    """
    errors = [r.error.exit_code for r in results if r.error is not None]
    if errors:
        return min(errors, key=lambda code: (code < EXIT_HOST_FAILED + 100, code))
    statuses = [r.exit_status or EXIT_HOST_FAILED for r in results if not r.ok]
    return max(statuses, default=EXIT_OK)
