"""Defines the engine DeepSpeed: fleet starts DeepSpeed's per-node launcher on each node. DeepSpeed's own fan-out over
ssh is never used."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath

from fleet.engines.base import CONSOLE, SPAWN, Engine, Option, Start, World, as_written, python_command
from fleet.engines.env_file import read_env_file
from fleet.errors import UsageError
from fleet.model import Job, Node


class DeepSpeed(Engine):
    """Starts `deepspeed.launcher.launch`, as DeepSpeed's own runner does on each node."""

    modules = ("torch", "deepspeed")
    options = (
        Option("bind-cores-to-rank", "Give each rank cores of its own, by numactl."),
        Option("bind-core-list", "Of these cores: 0-7,16-23.", "LIST"),
        Option("log-level", "How much its launcher prints.", choices=("debug", "info", "warning", "error", "critical")),
        Option("no-local-rank", "Leave the script without --local_rank."),
    )

    def check(self, job: Job) -> None:
        super().check(job)
        if "bind-core-list" in job.engine_options and "bind-cores-to-rank" not in job.engine_options:
            raise UsageError("--bind-core-list without --bind-cores-to-rank binds nothing", hint="give both")

    def prepare(self, job: Job, folder: Path) -> Job:
        """Adds the variables of DeepSpeed's own files, as a shell on the node would set them. --env overrides them."""
        literal, expand, notes = dict[str, str](), dict[str, str](), list[str]()
        for path in env_files(folder):
            found = read_env_file(path, path.name, strip=True)
            notes.append(f"{path} sets {', '.join(found) or 'nothing'}")
            for name, value in found.items():
                for values in (literal, expand):
                    values.pop(name, None)
                expands, value = in_a_shell(value, f"{path}: {name}")
                (expand if expands else literal)[name] = value
        given = {*job.env, *job.env_expand}
        return replace(
            job,
            env={**{name: value for name, value in literal.items() if name not in given}, **job.env},
            env_expand={**{name: value for name, value in expand.items() if name not in given}, **job.env_expand},
            notes=(*job.notes, *notes),
        )

    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        argv = (
            python,
            CONSOLE,
            *(("--workdir-first",) if len(world.nodes) > 1 and needs_path(job) else ()),
            "deepspeed.launcher.launch",
            "deepspeed",
            f"--world_info={world_info(world)}",
            f"--node_rank={node.node_rank}",
            f"--master_addr={world.master_addr}",
            f"--master_port={world.master_port}",
            *as_written(job.engine_options, "no-local-rank"),
            *job.engine_args,
            # the launcher would insert --local_rank into spawn.py's arguments; instead, spawn.py inserts it into the
            # command
            "--no_python",
            "--no_local_rank",
        )
        command = python_command(job, python)
        without = "no-local-rank" in job.engine_options or "--no_local_rank" in job.engine_args
        at = None if without else len(command) - len(job.args)
        return Start((*argv, *SPAWN), command, local_rank_at=at)


def _tokens(escaped: str, code: str, more: str) -> re.Pattern[str]:
    return re.compile(
        rf"""\\(?P<plain>{escaped})|\$(?P<name>[A-Za-z_]\w*|{{[A-Za-z_]\w*}})|(?P<code>`|\$[({{0-9@*#?$!-]{code})"""
        rf"""|(?P<quote>")|{more}(?P<text>.)""",
        re.ASCII,
    )


QUOTED = _tokens(r"[\\$\"`]", "", "")
BARE = _tokens(".", r"|[;&|<>()]|'(?![^']*')|\\\Z", r"'(?P<literal>[^']*)'|(?P<end>\s)|")
NOTHING = "${FLEET_NOTHING}"  # an empty variable, which keeps the text around it from being expanded


def in_a_shell(value: str, what: str) -> tuple[bool, str]:
    """Returns (True if the node must expand variables, the value). The value is what a shell would read in
    NAME="VALUE", because DeepSpeed's runner passes it so. Raises UsageError for a value that would run code, or has an
    open quote."""
    made, place, quoted, expands = "", 0, True, False
    while place < len(value):
        found = (QUOTED if quoted else BARE).match(value, place)
        assert found and found.lastgroup
        kind, text = found.lastgroup, found[found.lastgroup]
        if kind == "code":
            raise UsageError(f"{what}: a shell would run code for this value", hint="write there what it comes to")
        if kind == "end":
            break
        quoted ^= kind == "quote"
        expands |= kind == "name"
        made += f"${text}" if kind == "name" else "" if kind == "quote" else text.replace("$", f"${NOTHING}")
        place = found.end()
    if not quoted and place == len(value):
        raise UsageError(f"{what}: a quote does not end", hint="a shell reads this value; none is needed around blanks")
    made = f"{NOTHING}{made}" if made.startswith("~") else made
    return expands, made if expands else made.replace(NOTHING, "")


def needs_path(job: Job) -> bool:
    """Returns whether ranks find modules of the working folder only by PYTHONPATH, which DeepSpeed's runner sets for
    several nodes. Python looks in the working folder by itself for a module, and for a script in that folder."""
    return job.kind == "program" or (job.kind == "script" and PurePosixPath(job.script).parent != PurePosixPath())


def env_files(folder: Path) -> list[Path]:
    """Returns the files of variables that DeepSpeed's runner reads, in its order. A later file overrides an earlier
    one."""
    name = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
    found = [place / name for place in (Path.home(), folder) if (place / name).is_file()]
    return list(dict.fromkeys(found))


def world_info(world: World) -> str:
    """Returns DeepSpeed's world: base64 of {host: [local device ids]}, in node-rank order."""
    ids = {
        node.host.name: list(node.host.devices or ())[: node.local_world_size] or list(range(node.local_world_size))
        for node in world.nodes
    }
    return base64.urlsafe_b64encode(json.dumps(ids).encode()).decode()
