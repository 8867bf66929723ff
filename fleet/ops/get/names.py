"""Names the files and folders that `get` writes, from the request and from the run's record on this machine. No data of
a node becomes such a name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fleet.delivery.patterns import above
from fleet.errors import UsageError
from fleet.model import grouped
from fleet.ops.run.kept.documents import RUN, read_object
from fleet.protocol.messages.chain import Entry
from fleet.protocol.state import GET_STAGE, run_name

REPOSITORIES = frozenset({".git", ".hg"})  # the configuration in such a folder names programs that git and hg run


def name_of(path: str) -> str:
    """Returns the name of a requested path on a host. Raises UsageError if the path has no name of its own."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    name = parts[-1] if parts else ""
    if len(parts) == 1 and path[0] == "~":
        name = name.lstrip("~") or "home"
    if name in ("", "..", GET_STAGE):
        raise UsageError(f"{path} has no name of its own", hint="name the folder itself")
    return name


def name_of_run(run_id: str, host: str, requested: str, runs_dir: Path) -> str:
    """Returns the name of a run's working folder on a host, from the run's record on this machine, or else the run's
    name or id. requested: the run as the request names it."""
    known = read_object(runs_dir / run_id / RUN).get("hosts")
    parts = known if isinstance(known, dict) else {}
    for part in (parts.get(host), *parts.values()):
        folder = part.get("workdir") if isinstance(part, dict) else None
        if isinstance(folder, str) and folder.strip("~/."):
            return name_of(folder)
    return requested if run_name(run_id) == requested else run_id


def is_repository(name: str) -> bool:
    return name.lower() in REPOSITORIES


def makes_repository(names: Iterable[str]) -> bool:
    """Returns whether git may take a folder with these names in it for a repository, and run the programs that its
    config or its hooks name."""
    found = {name.lower() for name in names}
    return {"head"} < found & {"head", "config", "commondir"} or {"head", "objects", "refs"} <= found


def by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names in each folder. The folder "" is the one to which the paths are relative."""
    return grouped(path.rpartition("/")[::2] for path in paths)


def without_repositories(entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], list[str]]:
    """Leaves out .git and .hg at any depth, and folders that git takes for a repository. Returns (the remaining
    entries, the paths that were left out)."""
    entries = tuple(entries)
    paths = {entry[0] for entry in entries}
    out = {path for path in paths if is_repository(path.rpartition("/")[2])}
    for folder, names in by_folder(paths).items():
        if makes_repository(names):
            out.add(folder)
    if not out:
        return entries, []

    def is_out(path: str) -> bool:
        return not out.isdisjoint({path, "", *above([path])})

    left = sorted(path for path in out if path == "" or not is_out(path.rpartition("/")[0]))
    return tuple(entry for entry in entries if not is_out(entry[0])), [path or "." for path in left]
