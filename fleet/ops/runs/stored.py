"""What a run.json must hold to be believed: it may be anybody's, and have been changed by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from fleet.inventory.fields import FIELDS, FieldError, env_item, host_name, parse_field
from fleet.model import Host
from fleet.protocol.decode import Misfit, decode
from fleet.protocol.messages.values import Matching

Text = Annotated[Any, lambda value: type(value) is str]  # of any length
Texts = Annotated[Any, lambda value: type(value) is list and all(type(item) is str for item in value)]
Kept = dict[str, Annotated[Any, lambda value: value is None or type(value) is str]]
Table = dict[str, Any] | None
Own = str | float | bool | None
Launch = TypedDict(
    "Launch",
    {
        "args": Texts,
        "engine": str | None,
        "nnodes": int | str | None,
        "nproc_per_node": int | str | None,
        "master_addr": str | None,
        "master_port": int,
        "env": Kept,
        "env_expand": Kept,
        "workdir": str | None,
        "python": str | None,
        "engine_args": Texts,
        "module": bool,
        "no_python": bool,
        "sync": bool,
        "force": bool,
        "lease": float | None,
        "grace": float,
        "node_timeout": float,
        "stall_timeout": float | None,
        "max_restarts": int,
        "name": str | None,
        "preflight": bool,
        "detach": bool,
        "share": bool,
        "spares": int,
        "folder": str | None,
    },
    total=False,
)


class Asked(Launch):
    script: Text


class Stored(TypedDict):
    name: str
    address: str
    env: Kept


class Hosts(TypedDict):
    source: str | None
    whole: bool
    selected: Text
    env: Kept
    hosts: list[Stored]


class By(TypedDict):
    transport: str


Code = TypedDict(
    "Code",
    {
        "commit": Annotated[str, Matching("[0-9a-f]{4,64}")] | None,
        "dirty": bool | None,
        "sha256": str | None,
        "why": Text | None,
        "diff": str | None,
    },
    total=False,
)
Script = TypedDict("Script", {"sha256": str | None}, total=False)
Facts = TypedDict(
    "Facts",
    {"python": Table, "packages": Table, "torch": Table, "deepspeed": Table, "script": Script | None},
    total=False,
)
Optional = TypedDict("Optional", {"code": Code | None, "facts": dict[str, Facts] | None, "logs": Text}, total=False)


class Document(Optional):
    launch: Asked
    inventory: Hosts
    fleet: By


def misfit(document: Mapping[str, Any]) -> str | None:
    """What there makes no sense, in words."""
    try:
        decode(Document, document)
        asked, stored = document["launch"], document["inventory"]
        for key in asked.keys() - Asked.__annotations__.keys():  # an engine's own
            decode(Own, asked[key])
        for host in stored["hosts"]:
            _check(host)
        for env in (stored["env"], *(host["env"] for host in stored["hosts"])):
            for name, value in env.items():
                env_item(name, value or "")
    except Misfit as error:
        return str(error)
    except FieldError as error:
        return f"inventory: {error.message}"
    return None


def _check(host: Mapping[str, Any]) -> None:
    host_name(host["name"])
    known = {field.name for field in dataclasses.fields(Host)}
    for key, value in host.items():
        if key not in known:
            raise Misfit(key, ".inventory.hosts[]")
        if key in FIELDS and value is not None:
            if type(value) not in (str, int):
                raise Misfit(value, f".inventory.hosts[].{key}")
            if type(value) is not type(parse_field(key, str(value))):
                raise Misfit(value, f".inventory.hosts[].{key}")
