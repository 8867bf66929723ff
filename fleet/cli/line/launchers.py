"""Lists the options of torchrun, DeepSpeed, accelerate and Colossal-AI. `fleet launch` takes those that mean the same,
or reports why not, and the name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from fleet.cli.line.command import F, one_spelling
from fleet.engines.slips import RANKS
from fleet.errors import UsageError
from fleet.model import Host

# theirs -> fleet's, without dashes: an option of the same meaning and the same values
SAME = {
    **dict.fromkeys(RANKS[1:], RANKS[0]),
    "num-nodes": "nnodes",
    "num-machines": "nnodes",
    "main-process-ip": "master-addr",
    "main-process-port": "master-port",
    "hostfile": "inventory",
    "include": "hosts",
    "host": "hosts",
}
ITSELF = "leave it away: fleet does that itself"
_RANK = "a node's rank is its place in the inventory"
_RENDEZVOUS = "fleet has torchrun meet at --master-addr, by c10d where it may restart"
_LOGS = "each rank's output is in runs/RUN/HOST on this machine"
_STARTS = "fleet starts the ranks on each node, over --transport"
_AUTOTUNING = "DeepSpeed's tuner starts its trials with a launcher of its own, over and over; fleet leaves it alone"
# theirs -> (why fleet does not take it, what to do)
REFUSED = {
    "node-rank": (_RANK, ITSELF),
    "machine-rank": (_RANK, ITSELF),
    "rdzv-id": ("each run has an id of its own, so that no two meet", "--name NAME names a run"),
    "rdzv-backend": (_RENDEZVOUS, ITSELF),
    "rdzv-conf": (_RENDEZVOUS, ITSELF),
    "local-addr": ("each node has its own", "data_address in the inventory, where fleet does not find it"),
    **{
        name: ("that is for torchrun's agent alone", f"write --engine-arg=--{name}=VALUE")
        for name in ("monitor-interval", "start-method", "role", "numa-binding", "event-log-handler")
    },
    "standalone": ("a run on one node stays inside it anyway", "write --nnodes 1"),
    "same-network": ("fleet has the ranks meet at --master-addr", ITSELF),
    "log-dir": (_LOGS, "write --runs-dir DIR"),
    "redirects": (_LOGS, ITSELF),
    "tee": (_LOGS, ITSELF),
    "enable-each-rank-log": (_LOGS, "write --runs-dir DIR"),
    "save-pid": ("a run's processes are found by its id", ITSELF),
    "launcher": (_STARTS, ITSELF),
    "launcher-args": (_STARTS, ITSELF),
    "no-ssh": (_STARTS, ITSELF),
    "no-ssh-check": (_STARTS, ITSELF),
    "force-multi": (_STARTS, ITSELF),
    "ssh-port": ("a host's port is its own", "port: in the inventory, or -p behind it in a hostfile"),
    "venv-script": ("a host's environment is its own", "activate: or python: in the inventory"),
    "autotuning": (_AUTOTUNING, "deepspeed --autotuning run ..., then 'fleet launch' with what it found"),
    "elastic-training": ("fleet starts on the hosts that are selected", "write --nnodes N"),
    "min-elastic-nodes": ("fleet starts on the hosts that are selected", "write --nnodes N"),
    "max-elastic-nodes": ("fleet starts on the hosts that are selected", "write --nnodes N"),
    "deepspeed": ("that is an engine", "write --engine deepspeed"),
    "H": ("a hostfile is an inventory", "write -i FILE"),
    "e": ("fleet's word is -x", "write -x HOSTS"),
}


def spelled(token: str) -> str:
    """An option, with or without its dashes, as `fleet launch` calls it."""
    name = one_spelling(token)
    bare = name.lstrip("-")
    return name.removesuffix(bare) + SAME.get(bare, bare)


def theirs(command: F) -> F:
    """Decorator: adds the options of theirs whose values fleet has in another form; see translate()."""
    for option, metavar in (("--rdzv-endpoint", "ADDR[:PORT]"), ("--num-processes", "N")):
        command = click.option(option, metavar=metavar, hidden=True, help=f"See {__name__}.")(command)
    return command


def translate(given: dict[str, Any], hosts: Sequence[Host]) -> None:
    """Makes of those what fleet calls them. hosts: those of the run."""
    endpoint, total = given.pop("rdzv_endpoint"), given.pop("num_processes")
    if endpoint is not None:
        address, colon, port = endpoint.rpartition(":")
        whole = not colon or not port.isdecimal()
        _put(given, "--rdzv-endpoint", "master_addr", (endpoint if whole else address).strip("[]"))
        if not whole:
            _put(given, "--rdzv-endpoint", "master_port", port)
    if total is not None:
        _put(given, "--num-processes", "nproc_per_node", _each(total, hosts))


def _put(given: dict[str, Any], option: str, name: str, value: str | None) -> None:
    fleets = f"--{name.replace('_', '-')}"
    if given[name] not in (None, "auto", value):
        raise UsageError(f"{option} and {fleets} say different things", hint="leave one of the two away")
    given[name] = value or given[name]


def _each(total: str, hosts: Sequence[Host]) -> str | None:
    """Ranks on each host, of `total` on all of them, as accelerate counts; None where the inventory's slots add up."""
    slots = sum(host.slots or 0 for host in hosts)
    if not total.isdecimal() or not int(total) or not hosts or (int(total) != slots and int(total) % len(hosts)):
        raise UsageError(
            f"--num-processes {total}: cannot be shared out to {len(hosts)} hosts evenly",
            hint="--nproc-per-node N for each host, or 'slots' in the inventory",
        )
    return None if int(total) == slots else str(int(total) // len(hosts))
