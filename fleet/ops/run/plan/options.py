"""Makes the ids of runs, reads --env, --env-file and --each, and checks which options go together."""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from fleet.engines import DEFAULT, suited
from fleet.engines.env_file import read_env_file
from fleet.engines.slips import starts_another
from fleet.errors import UsageError
from fleet.inventory.secret import secret_in
from fleet.model import Host, Job, Kind
from fleet.protocol.state import LONGEST_NAME
from fleet.requests.launch import Launch
from fleet.requests.variables import check_variable

SCRIPTS = (".py", ".sh", ".bash")
# a line up to its comment, which begins with a hash at the beginning of a token
_BEFORE_COMMENT = re.compile(r"""(?:[^'"\\#]|(?<=\S)#|\\.#*|'[^']*'|"(?:[^"\\]|\\.)*")*""")


def name_of(script: str, args: Sequence[str]) -> str:
    """Returns the script after which a run is named. If `script` is an interpreter or a launcher, that is the script in
    its arguments."""
    if not starts_another(script):
        return script
    module = next((args[at + 1] for at, arg in enumerate(args[:-1]) if arg == "-m"), script)
    return next((arg for arg in args if PurePosixPath(arg).suffix in SCRIPTS), module)


def new_run_id(script: str, name: str | None, now: float | None = None, token: str | None = None) -> str:
    """Returns `<name or script stem>-YYYYMMDD-HHMMSS-<4 hex>`, with only characters that are safe in any file name.
    token: the 4 hex digits."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stem_of(name or PurePosixPath(script).stem)}-{stamp}-{token or secrets.token_hex(2)}"


def id_of(request: Launch) -> str:
    """Returns an id for a new run."""
    called = request.script if request.module else None
    return new_run_id(name_of(request.script, request.args), request.name or called)


def job_of(request: Launch) -> Job:
    """Returns the job of a request, without the hosts to run it on."""
    kind: Kind = "module" if request.module else "program" if request.no_python else "script"
    by_name = request.engine is not None or kind != "script"
    chosen, fitting = (request.engine or DEFAULT, {}) if by_name else suited(request.script)
    return Job(
        request.script,
        tuple(request.args),
        engine=chosen,
        env=dict(request.env or {}),
        env_expand=dict(request.env_expand or {}),
        max_restarts=request.max_restarts,
        engine_args=tuple(request.engine_args),
        engine_options={**fitting, **{name.replace("_", "-"): value for name, value in request.options.items()}},
        kind=kind,
    )


def stem_of(name: str, longest: int = LONGEST_NAME) -> str:
    """Returns the beginning of a run's id: the characters of its name that an id may have, or `run` if there are
    none."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:longest] or "run"


def read_env(
    files: Iterable[Path], literal: Iterable[str], expand: Iterable[str], head: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns (literal values, values that the node expands). --env replaces values of --env-file; --env-expand
    replaces both.

    `K=V` is literal. `K` alone takes the value in `head`, the environment of this process. Raises UsageError if it has
    none. No message shows a value.
    """
    values: dict[str, str] = {}
    for path in files:
        values.update(read_env_file(path))
    for item in literal:
        name, equals, value = item.partition("=")
        value = value if equals else head.get(name, "")
        check_variable("--env", name, value)
        if not equals and name not in head:
            raise UsageError(f"--env {name}: not set here", hint=f"export {name}, or give --env {name}=VALUE")
        values[name] = value
    expanded: dict[str, str] = {}
    for item in expand:
        name, equals, value = item.partition("=")
        check_variable("--env-expand", name, value)
        if not equals:
            raise UsageError(f"--env-expand {name}: no value", hint=f"--env-expand '{name}=$HOME/data'")
        expanded[name] = value
        values.pop(name, None)
    return values, expanded


def read_lines(file: Path, script: str | None) -> list[list[str]]:
    """Returns the arguments in each line of a file, split as by a shell. Empty lines and comments are left out."""
    if script is None:
        raise UsageError(f"--each {file}: its lines are arguments of a script", hint="name SCRIPT, after the options")
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--each {file}: it cannot be read: {error}", hint="a line has the arguments of one run"
        ) from None
    found = list[list[str]]()
    for number, line in enumerate(lines, 1):
        try:
            found += [tokens] if (tokens := shlex.split(before := _without_comment(line))) else []
        except ValueError as error:
            raise UsageError(f"{file}:{number}: {error}", hint="quote what has a quote in it") from None
        if shown := secret_in(before):
            hint = "--env NAME, or --env-file FILE, gives it to the ranks of all lines"
            raise UsageError(f"{file}:{number}: {shown}: a script must not hold a secret", hint=hint)
    if not found:
        raise UsageError(f"--each {file}: it has no line", hint="a line has the arguments of one run, as typed")
    return found


def _without_comment(line: str) -> str:
    """Returns a line without its comment. A hash within a token begins none, as in a shell: `--name exp#3`."""
    end = len(_BEFORE_COMMENT.match(line)[0])  # type: ignore[index]  # it matches the empty text, too
    return line[:end] if line[end : end + 1] == "#" else line


def check_containers(request: Launch, hosts: Iterable[Host]) -> None:
    """Raises UsageError for options that do not suit the hosts' containers."""
    inside = [host.name for host in hosts if request.image_of(host)]
    if inside and request.wheels:
        why = f"--wheels installs into the node's Python, and {inside[0]} runs an image's"
        raise UsageError(why, hint="build an image that has them, or leave out --wheels")
    if request.container_args and not inside:
        raise UsageError("--container-arg: no host has a container", hint="give --container IMAGE, or leave it out")
