"""Preflight: one round trip to all nodes at once; everything that is wrong is said at once, nothing starts."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from fleet.each import as_one
from fleet.engines import engine
from fleet.errors import EXIT_PREFLIGHT, FleetError, HostFailed, Interrupted, PreflightError, ProtocolError
from fleet.events import Notice
from fleet.model import Host
from fleet.ops.launch.findings import DEADLINE_SECONDS, findings
from fleet.ops.launch.plan import Facts, Plan, candidate_ports
from fleet.ops.launch.start import Sessions
from fleet.protocol.frames import MESSAGE
from fleet.protocol.messages.facts import Preflight, Ready
from fleet.rules.judge import told
from fleet.rules.rule import Finding
from fleet.rules.units import counted
from fleet.transport.base import Cancel, Session, Transport
from fleet.transport.frames import MISFITS
from fleet.transport.program import Program

SILENCE_SECONDS = 15.0
MAX_CPUS = 4096  # more ranks than any node runs, whatever a broken one says it has

Raw = Mapping[str, Any]  # the facts of one node, as fleet/node/run/preflight.py documents them


def preflight(plan: Plan, sessions: Sessions) -> Plan:
    """The plan with what was found. ConnectError, PreflightError after telling every finding; an automatic port is
    redrawn while it is taken."""
    first = plan.hosts[0].name
    address = meeting_address(plan, sessions.runtime.transport)
    for port in [plan.job.master_port] if plan.job.master_port else candidate_ports(plan.run_id):
        raw, errors = ask_all(plan, (address, port), sessions)
        if errors or not port_is_taken(raw[first]):
            break
    refuse(plan, findings(plan, raw, complete=not errors), errors, sessions)
    network = raw[first].get("network") or {}
    return plan.refine({name: facts_of(node) for name, node in raw.items()}, (network.get("master") or address, port))


def meeting_address(plan: Plan, transport: Transport) -> str:
    """The master's address as a number where the head can tell it: a node often knows itself as 127.0.1.1.

    A name that means nothing here, or this very machine, is left to the nodes.
    """
    address, first = plan.world.master_addr, plan.hosts[0]
    if len(plan.hosts) == 1:
        return address
    if plan.job.master_addr is None and first.data_address is None:
        target = transport.resolve(first)
        address = target.address if target else address  # HostName of ~/.ssh/config
    try:
        known = [str(entry[4][0]) for entry in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)]
    except OSError:
        return address
    return next((found for found in known if not ip_address(found.partition("%")[0]).is_loopback), address)


def port_is_taken(raw: Raw) -> bool:
    return (raw.get("port") or {}).get("ok") is False


def ask_all(plan: Plan, master: tuple[str, int], sessions: Sessions) -> tuple[dict[str, Raw], dict[str, FleetError]]:
    """(facts, errors) by host name. master: address and port. A host that fails ends the others' waiting for it at
    once."""
    token = secrets.token_hex(16)
    hurry = Cancel()

    def ask(session: Session, host: Host) -> Raw:
        with Program(session, "run.preflight", spec_for(plan, host, master, token)) as program:
            undo = hurry.on_set(lambda: program.send({"op": "done"}))
            try:
                for frame in program.frames(
                    silence=SILENCE_SECONDS,
                    cancel=sessions.runtime.cancel,
                    deadline=time.monotonic() + DEADLINE_SECONDS + 10,
                ):
                    if frame.kind == MESSAGE:
                        message = frame.decode(Ready | Preflight)
                        if message["event"] == "facts":
                            return {**message["facts"], "heard": time.time()}
            finally:
                undo()
        raise HostFailed("preflight gave no answer there", host=host.name)

    def connect_and_ask(host: Host) -> Raw:
        try:
            facts = ask(sessions.get(host), host)
            try:
                facts_of(facts), findings(plan, {host.name: facts}, complete=False)
            except MISFITS as error:
                raise ProtocolError(f"facts that make no sense ({type(error).__name__}: {error})", host.name) from error
            if port_is_taken(facts):
                hurry.set()  # the meeting has failed: nobody needs to wait for it to its end
            return facts
        except BaseException:
            hurry.set()  # nobody needs to wait for this one any more
            raise

    return sessions.each(plan.hosts, connect_and_ask, "preflight")


def spec_for(plan: Plan, host: Host, master: tuple[str, int], token: str) -> dict[str, Any]:
    """What fleet/node/run/preflight.py is fed."""
    node = plan.node(host.name)
    others = [n.data_address or n.address for n in plan.hosts if n.name != host.name]
    return {
        "run": plan.run_id,
        "node_rank": node.node.node_rank,
        "master": {
            "address": master[0],
            "port": master[1],
            "token": token,
            "is_me": node.node.node_rank == 0,
            "peers": len(others),
        },
        "script": plan.job.script,
        "workdir": node.workdir,
        "python": plan.job.python or host.python,
        "activate": host.activate,
        "env": dict(node.env),
        "engine": plan.job.engine,
        "modules": list(engine(plan.job.engine).modules),
        "deadline": DEADLINE_SECONDS,
        "peer_addresses": others[:1] if node.node.node_rank == 0 else [],
    }


def _text(said: Any) -> str | None:
    return str(said) if said else None


def facts_of(raw: Raw) -> Facts:
    python, network, code = raw.get("python") or {}, raw.get("network") or {}, raw.get("code") or {}
    return Facts(
        python=_text(python.get("path")),
        gpus=len(raw.get("gpus") or ()),
        cpus=min(int(raw.get("cpus") or 1), MAX_CPUS),
        address=_text(network.get("address")),
        interface=_text(network.get("interface")),
        clock_offset=float(raw.get("time") or 0) - float(raw.get("heard") or 0),
        code=(str(code["state"]), str(code["digest"])) if code.get("digest") else None,
    )


def _event(finding: Finding) -> dict[str, Any]:
    record = finding.as_json()
    remedy = record.pop("remedy")
    return {"event": "finding", **record, "hint": remedy}


def refuse(plan: Plan, found: list[Finding], errors: Mapping[str, FleetError], sessions: Sessions) -> None:
    """Tell everything that was found; raise when anything of it forbids the start."""
    if any(isinstance(error, Interrupted) for error in errors.values()):
        raise Interrupted("interrupted in preflight; nothing was started")
    emit = sessions.runtime.emit
    causes = told(found)
    fatal = sum(severity == "error" for severity, _ in causes) if plan.options.preflight else 0
    wrong: dict[str, FleetError | None] = dict.fromkeys(host.name for host in plan.hosts)
    for finding in found if fatal else ():
        for name in finding.hosts if finding.severity == "error" else ():
            wrong[name] = wrong[name] or PreflightError(finding.message, hint=finding.remedy, host=name)
    wrong.update(errors)
    for severity, cause in causes:
        level = severity if plan.options.preflight else "warning"
        emit(Notice(level, cause.message, None, cause.hint, [_event(finding) for finding in cause.whose]))
    if errors:
        ordered = dict(sorted(errors.items(), key=lambda it: it[1].exit_code == EXIT_PREFLIGHT))
        refusal = as_one(ordered, emit, "unreachable", "; nothing was started anywhere")
        refusal.hosts = wrong
        raise refusal
    if fatal:
        refusal = PreflightError(
            f"preflight refused, {counted(fatal, 'finding')}; nothing was started anywhere",
            hint="--no-preflight starts in spite of them",
        )
        refusal.hosts = wrong
        raise refusal
