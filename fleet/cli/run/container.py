"""`fleet launch --on env`: this container's part of a run that a platform starts in all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from fleet.cli.line.options import settings_of
from fleet.errors import UsageError
from fleet.node.container.main import main
from fleet.ops.run.plan.options import read_env

# of `fleet launch` -> the runner's own
OPTIONS = {
    "nnodes": "--nnodes",
    "nproc_per_node": "--nproc-per-node",
    "master_addr": "--master-addr",
    "master_port": "--master-port",
    "python": "--python",
    "workdir": "--workdir",
    "runs_dir": "--runs-dir",
    "name": "--name",
    "grace": "--grace",
}
OTHERS = {"module", "env", "env_file", "script", "args"}


def launch_here(script: str, args: Sequence[str], given: dict[str, Any]) -> int:
    """The run's end in this container. UsageError for what has no meaning here."""
    ctx = click.get_current_context()
    typed = {name for name in given if ctx.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)}
    for name in sorted(typed - OPTIONS.keys() - OTHERS):
        option = name.replace("_", "-")
        raise UsageError(f"--{option} has no meaning with --on env", hint=f"leave out --{option}")
    os.environ.update(read_env(given["env_file"], given["env"], (), os.environ)[0])
    words = [f"{flag}={given[name]}" for name, flag in OPTIONS.items() if name in typed]
    words += ["-m"] if given["module"] else []
    if settings_of().dry_run:
        words = ["explain-env"]
        return main(words + ["--json"] * settings_of().json)
    return main([*words, script, *args])
