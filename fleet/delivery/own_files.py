"""Makes the errors, hints and questions about files that a sync would replace or delete although they are the node's
own, another source's, or most of what is there."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.answers.sync import Synced
from fleet.errors import PreflightError, Reason, UsageError
from fleet.inventory.nodeset import fold
from fleet.model import Result
from fleet.protocol.messages.code import Most, Other, OwnFile
from fleet.rules.causes import by_cause
from fleet.rules.units import counted, few, seconds, size_text

KIND, OTHER, MOST = "own-files", "other-source", "max-delete"
NAMED = 5
KINDS = {"d": "a folder", "l": "a link", "o": "no file"}


def error(host: str, files: Sequence[OwnFile], hint: str) -> PreflightError:
    """Returns the error about files in the way that are the host's own. hint: see consent()."""
    details: dict[str, str] = {}
    shown = []
    for number, (path, kind, size, age, holds) in enumerate(files[:NAMED]):
        ago = seconds(age) if age < 1e7 else f"{age / 86400:.0f} d"
        details |= {f"size{number}": size_text(size), f"age{number}": ago}
        what = f"{{size{number}}}" if kind == "f" else KINDS[kind] + (f" with {holds}" if holds else "")
        shown.append(f"{path} ({what}, written {{age{number}}} ago)")
    text = f"{counted(len(files), 'file')} in the way, not delivered from here or changed since: "
    message = Reason(f"{text}{few([*shown, *[''] * (len(files) - len(shown))], NAMED)}; nothing was changed", **details)
    return PreflightError(message, host=host, kind=KIND, hint=hint)


def refusal(other: Other, host: str, command: tuple[str, str]) -> Result:
    """Returns the failure of a host that would lose files from another source. command: as for refused_most()."""
    source, lost = other["source"], {"deleted": other["deleted"], "replaced": other["replaced"]}
    message = Reason(
        "{to} holds what was synced from {source}: {deleted} of its files would be deleted, {replaced} replaced",
        to=other["dest"],
        source=f"{source['host']}:{source['path']}",
        **lost,
    )
    hint = f"--to FOLDER keeps both; to replace it: {limited(command, other['deleted'], ' --force')}"
    error = PreflightError(message, host=host, kind=OTHER, hint=hint)
    return Result(
        host,
        False,
        error=error,
        answer=Synced(other["dest"], source=source, deleted=other["deleted"], replaced=other["replaced"]),
    )


def refused_most(most: Most, host: str, command: tuple[str, str]) -> Result:
    """Returns the failure of a host on which most files would be deleted. command: the command line as typed, in two
    parts; further options fit between them."""
    message = Reason(
        "{deleted} of the {of} files that were delivered to {to} would be deleted{inside}: {names}; nothing was sent",
        deleted=most["deleted"],
        of=most["of"],
        to=most["dest"],
        inside=f", most of {most['folder']}/" if most["folder"] else "",
        names=few([*most["named"], *[""] * (most["deleted"] - len(most["named"]))], NAMED),
    )
    force = " --force" * (most["source"] is not None and " --force" not in command[0])
    hint = f"if they are meant to go: {limited(command, most['deleted'], force)}; any number of them: --max-delete=all"
    return Result(
        host,
        False,
        error=UsageError(message, host=host, kind=MOST, hint=hint),
        answer=Synced(most["dest"], source=most["source"], deleted=most["deleted"]),
    )


def limited(command: tuple[str, str], deleted: int, more: str = "") -> str:
    """Returns the command line with the consent to delete `deleted` files. more: options before that."""
    return f"{command[0]}{more} --max-delete={deleted}{command[1]}"


def question(refused: Sequence[Result], last: str = "Replace them? They are kept on the node for 30 days") -> str:
    """Returns the question to the user: what would be lost on which hosts, then `last`."""
    causes = by_cause([(r.host, r.error.message, None) for r in refused if r.error is not None])
    return "\n".join([*(f"{fold(cause.whose)}: {cause.message}" for cause in causes), last])


def consent(command: str) -> str:
    """Returns the hint about files in the way: the command lines that replace them and that leave them."""
    return f"{by_force(command)}; to leave what is the node's: {command} --keep"


def by_force(command: str) -> str:
    return f"to replace it: {command} --force"
