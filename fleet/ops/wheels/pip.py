"""Runs pip on the head, in an interpreter that may start no other program. So no package's setup runs on this machine,
neither that of a requirement nor that of a dependency."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy  # noqa: TID251
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fleet.errors import Interrupted, UsageError
from fleet.own_process import own_process
from fleet.runtime import Runtime

PATHS = ("PIP_FIND_LINKS", "PIP_CONSTRAINT", "PIP_CONFIG_FILE", "PIP_CACHE_DIR", "PIP_CERT", "PIP_CLIENT_CERT")
REFUSED = "fleet lets pip start no program"
STARTS = re.compile("os[.](exec|fork|posix_spawn|spawn|system)|pty|subprocess")


def run_pip(
    argv: Sequence[str],
    folder: Path,
    runtime: Runtime,
    *,
    sources: Path | None = None,
    hosts: Mapping[str, Any] | None = None,
) -> str | None:
    """Runs pip in `folder`, with the user's own configuration. Returns None if pip succeeds, or else its output.

    sources: a folder. The first source archive that pip fetches is copied there unchanged, and pip then succeeds.
    hosts: the hosts for which pip resolves: {"site": a folder of their metadata, "markers", "tags", ...}.
    Raises Interrupted, and UsageError if there is no pip.
    """
    given = {name: os.environ[name].split() for name in PATHS if name in os.environ}
    absolute = {name: " ".join(os.path.abspath(w) if os.path.exists(w) else w for w in given[name]) for name in given}
    spec = {"argv": [*argv], "folder": str(folder), "sources": str(sources) if sources else None, "hosts": hosts}
    process = own_process(
        f"{__name__}:main",
        spec,
        path=_where_pip_is(),
        env={**os.environ, **absolute, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"},
    )
    with runtime.cancel.calling(process.terminate):
        out, _ = process.communicate()
    if runtime.cancel.is_set():
        raise Interrupted("interrupted")
    return None if process.returncode == 0 else out.decode("utf-8", "replace")


def _where_pip_is() -> list[str]:
    """Returns the folders that fleet's own interpreter needs to import the pip on the PATH; none if that interpreter
    has a pip itself."""
    if importlib.util.find_spec("pip") is not None:
        return []
    program = shutil.which("pip3") or shutil.which("pip")
    if program is None:
        raise UsageError("no pip on this machine", hint="python3 -m ensurepip, or give a folder of wheels")
    done = subprocess.run([program, "--version"], cwd="/", capture_output=True, text=True, errors="replace")
    return re.findall(r" from (.+)/pip\b", done.stdout)[:1]


def main(spec: dict[str, Any]) -> None:
    """Runs pip in this process. pip runs setups, build backends, git and the like as programs, never in its own
    interpreter; keyring, which gives passwords to indexes, is the one program that it may start."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(REFUSED)

    def keep(archive: str, *_: object, **__: object) -> NoReturn:
        if spec["sources"] is None:
            refuse()  # a source archive that is unpacked may write elsewhere
        shutil.copyfile(archive, os.path.join(spec["sources"], os.path.basename(archive)))
        os._exit(0)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        keyring = event == "subprocess.Popen" and os.path.basename(os.fsdecode(args[0])) == "keyring"
        if STARTS.match(event) and not keyring:
            refuse()

    os.chdir(spec["folder"])
    sys.argv = ["pip", *spec["argv"]]
    if spec["hosts"]:
        _resolve_for(**spec["hosts"])
    sys.addaudithook(hook)
    tarfile.open = keep  # type: ignore[assignment]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


def _resolve_for(site: str, markers: dict[str, str], tags: list[str], **_: object) -> None:
    """Makes pip download the packages that another interpreter lacks. pip has an option only for that interpreter's
    version. The interpreter's packages, markers and tags are set here, before the modules that use them are loaded."""
    from pip._internal import metadata

    installed = metadata.get_environment([site])
    metadata.get_default_environment = lambda: installed
    from pip._internal.utils import compatibility_tags
    from pip._vendor.packaging import markers as evaluated
    from pip._vendor.packaging.tags import Tag

    supported = [Tag(*tag.split("-")) for tag in tags]
    compatibility_tags.get_supported = lambda *_, **__: supported
    evaluated.default_environment = lambda: dict(markers)
    from pip._internal.cli.req_command import RequirementCommand
    from pip._internal.commands.download import DownloadCommand

    DownloadCommand.make_resolver = partial(  # type: ignore[method-assign]
        RequirementCommand.make_resolver, ignore_installed=False
    )
