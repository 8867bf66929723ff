"""Makes the engine's process for a container that a platform started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.engines import check, engine
from fleet.engines.base import World
from fleet.errors import UsageError
from fleet.model import Host, Job, Node
from fleet.node.base.errors import Refused


def started(
    options: Any, begin: Mapping[str, Any], least: int, most: int, own: str | None
) -> tuple[list[Any], dict[str, Any], dict[str, str], dict[str, str]]:
    """Returns the values that Part.started() in node/container/part.py returns: (argv, command.json, environment,
    files). begin: see begin_of() there. least, most: the numbers of nodes of an elastic run. own: this node's address,
    or None. Raises Refused for options that conflict."""
    chosen, nodes, first = engine(options.engine), list[Node](), 0
    for number, (host, each) in enumerate(begin["nodes"]):
        nodes.append(Node(Host(host, host), number, each, first))
        first += each
    for number in range(len(nodes), most):  # nodes that may join an elastic run later
        nodes.append(Node(Host(f"later-{number}", ""), number, 0, first))
    job = Job(
        options.script,
        tuple(options.args),
        engine=options.engine,
        env=options.env,
        engine_args=tuple(options.engine_args),
        engine_options=options.engine_options,
        max_restarts=options.max_restarts,
        kind="module" if options.module else "script",
    )
    try:
        check(job)
        job = chosen.prepare(replace(job, kind=chosen.kind(job)), Path(options.workdir))
    except UsageError as error:
        raise Refused(error.message, error.hint) from None
    node = next(node for node in nodes if node.host.name == begin["host"])
    addresses = {node.host.name: own} if own else {}
    world = World(begin["run"], tuple(nodes), begin["master"], begin["port"], addresses, least=least)
    start = chosen.start(job, world, node, options.python)
    argv = [arg if isinstance(arg, str) else arg.as_spec() for arg in start.argv]
    command = {"argv": list(start.command), "local_rank_at": start.local_rank_at}
    return argv, command, {**start.env, **job.env}, dict(job.files)
