"""Queries nodes where the ranks of a run are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fleet.answers.runs import StacksThere
from fleet.each import on_each
from fleet.errors import HostFailed, Reason
from fleet.model import Host, Result
from fleet.protocol.messages.stacks import RankStack, Stacks, StacksSpec
from fleet.protocol.messages.values import Failed
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import call

STACKS_SECONDS = 30.0  # of one host


def ask_stacks(
    run_id: str, hosts: Mapping[str, Host], ranks: Collection[int] | None, native: bool, runtime: Runtime
) -> tuple[Result, ...]:
    """Returns a StacksThere of each host: its ranks' stacks, and whether it waits for others at itself. ranks: only
    these; None: all. native: see StacksSpec."""
    spec: StacksSpec = {"run": run_id, "ranks": None if ranks is None else sorted(ranks), "native": native}

    def ask(session: Session, host: Host) -> Result:
        answer = call(session, "run.stacks", spec, Stacks | Failed, timeout=STACKS_SECONDS, cancel=runtime.cancel)
        if answer["event"] == "failed":
            raise HostFailed(Reason.of_node(answer["message"]), host=host.name, hint=answer["hint"])
        return Result(host.name, True, 0, answer=StacksThere(answer["ranks"], answer["own_master"]))

    return on_each(tuple(hosts.values()), replace(runtime, fanout=len(hosts)), ask, what="taking stacks")


def by_host(results: Sequence[Result]) -> dict[str, list[RankStack]]:
    """Their stacks, by host."""
    return {result.host: list(result.read(StacksThere).ranks) for result in results}
