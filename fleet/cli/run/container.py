"""`fleet launch --on env`: this container's part of a run that a platform starts in all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from fleet.cli.line.options import settings_of
from fleet.cli.run.launch_options import take
from fleet.errors import UsageError
from fleet.node.container.main import main, run_here
from fleet.node.container.options import ROWS, field, of
from fleet.ops.run.plan.options import read_env

OTHERS = {"module", "env", "env_file", "script", "args"}


def launch_here(script: str, args: Sequence[str], given: dict[str, Any], asked: Mapping[str, Any]) -> int:
    """Returns the run's exit code in this container. UsageError for what has no meaning here. asked: the options that
    only --on env has."""
    ctx, known = click.get_current_context(), set(map(field, ROWS))
    own = take(given)
    typed = {name for name in given if ctx.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)}
    for name in sorted(typed - known - OTHERS):
        option = name.replace("_", "-")
        raise UsageError(f"--{option} has no meaning with --on env", hint=f"leave out --{option}")
    if settings_of().dry_run:
        return main(["explain-env", *["--json"] * settings_of().json])
    options = {name: given[name] for name in typed & known} | dict(asked)
    options["env"] = read_env(given["env_file"], given["env"], (), os.environ)[0]
    options["runs_dir"] = str(given["runs_dir"])
    options |= {"module": given["module"], "engine_options": {name.replace("_", "-"): own[name] for name in own}}
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", wait := options.get("wait", "0")):
        raise UsageError(f"--wait {wait}: no number of seconds", hint="--wait 600")
    if "wait" in options:
        options["wait"] = float(wait)
    return run_here(of(options, script, args))
