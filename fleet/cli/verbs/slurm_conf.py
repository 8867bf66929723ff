"""Runs `fleet slurm-conf`: writes the configuration files of Slurm for the inventory's hosts."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from fleet import own
from fleet.cli.context import finish, perform, the_fleet
from fleet.cli.line.command import Verb
from fleet.cli.line.hints import as_typed
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import common_options
from fleet.cli.screen.output import clean_lines, echo
from fleet.errors import EXIT_OK, UsageError
from fleet.model import Report
from fleet.slurmconf import CGROUP_CONF, gres_conf, node_of, slurm_conf


def steps(first: str, folder: str) -> list[str]:
    """Returns the commands that make a Slurm cluster from the files in `folder`. first: the first host, which is the
    controller."""
    lines = (
        "fleet exec -- apt-get install -y slurm-wlm munge",
        "(umask 077 && head -c 1024 /dev/urandom > munge.key)",
        "fleet exec --stdin --shell 'umask 077 && cat > /etc/munge/munge.key' < munge.key",
        "fleet exec -- chown munge: /etc/munge/munge.key",
        f"fleet sync {folder} --to /etc/slurm",
        f"fleet exec -w {first} -- install -d -o slurm /var/spool/slurmctld /var/log/slurm",
        "fleet exec -- systemctl restart munge slurmd",
        f"fleet exec -w {first} -- systemctl restart slurmctld",
    )
    return [as_typed(line) for line in lines]


@click.command("slurm-conf", cls=Verb, examples=("fleet slurm-conf", "fleet slurm-conf --partition a100 --to a100"))
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("slurm"),
    show_default=True,
    help="Folder for the files.",
)
@click.option("--cluster", default="cluster", show_default=True, metavar="NAME", help="The cluster's name.")
@click.option("--partition", default="gpu", show_default=True, metavar="NAME", help="Of the one partition.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@common_options
def slurm_conf_(folder: Path, cluster: str, partition: str, force: bool) -> int:
    """Write slurm.conf, gres.conf and cgroup.conf for the inventory's hosts, from their report of CPUs, memory and
    GPUs. Show what to do with these files. The first host is the controller.
    """
    for option, name in (("--cluster", cluster), ("--partition", partition)):
        if not name.isidentifier():
            raise UsageError(f"{option} {name}: not a name", hint="letters, digits and _")
    from fleet.ops.facts import HasFacts

    if settings_of().dry_run:
        return perform(lambda fleet: fleet.plan.check(), lambda report: None)
    fleet = the_fleet()
    report = fleet.check()
    addresses = {host.name: host.address for host in fleet.inventory.hosts}
    if not all(result.ok for result in report.results):
        return finish(report)
    nodes = [node_of(it.host, addresses[it.host], it.read(HasFacts).facts) for it in report.results]
    files = {
        "slurm.conf": slurm_conf(nodes, cluster=cluster, partition=partition, tasks="task/affinity,task/cgroup"),
        "gres.conf": gres_conf(nodes),
        "cgroup.conf": CGROUP_CONF,
    }
    if there := [name for name in files if (folder / name).exists() and not force]:
        raise UsageError(f"{folder / there[0]} is there already", hint="--force replaces it, --to DIR writes elsewhere")
    own.write_given(folder, {name: text.encode() for name, text in files.items()})
    following = steps(nodes[0].name, shlex.quote(str(folder)))
    document = {"files": [str(folder / name) for name in files], "next": following}
    shown = "\n  ".join(
        (f"{len(nodes)} nodes: {', '.join(document['files'])}\nnext, where your account is root:", *following)
    )
    return finish(Report("slurm-conf", (), EXIT_OK, document), lambda _: echo(clean_lines(shown), wrap=False))
