"""Makes the errors, hints and questions about files that a sync may replace or delete only with consent: the node's
own, another source's, or most of the files on the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleet.answers.sync import Synced
from fleet.errors import FleetError, PreflightError, Reason, UsageError
from fleet.inventory.nodeset import fold
from fleet.model import Result
from fleet.protocol.messages.code import Consent, OwnFile
from fleet.rules.causes import by_cause
from fleet.rules.units import counted, few, seconds, size_text

KIND, OTHER, MOST = "own-files", "other-source", "max-delete"
NAMED = 5  # most files that a message names
KINDS = {"d": "a folder", "l": "a link", "o": "no file"}


def error(host: str, files: Sequence[OwnFile], hint: str) -> PreflightError:
    """Returns the error about files in the way that are the host's own. hint: see consent()."""
    details: dict[str, str] = {}
    shown = []
    for number, (path, kind, size, age, holds) in enumerate(files[: NAMED + 1]):
        ago = seconds(age) if age < 1e7 else f"{age / 86400:.0f} d"
        details |= {f"size{number}": size_text(size), f"age{number}": ago}
        what = f"{{size{number}}}" if kind == "f" else KINDS[kind] + (f" with {holds}" if holds else "")
        shown.append(f"{path} ({what}, written {{age{number}}} ago)")
    text = f"{counted(len(files), 'file')} in the way, not delivered from here or changed since: "
    message = Reason(f"{text}{few(shown, NAMED, len(files))}; nothing was changed", **details)
    return PreflightError(message, host=host, kind=KIND, hint=hint)


def refusal(lost: Consent, host: str, line: Callable[[int, bool], str]) -> Result:
    """Returns the failure of a host that would lose files from other sources, or most of its files. line: see
    Mirror.consent."""
    sources, deleted, replaced = lost["sources"], lost["deleted"], lost["replaced"]
    error: FleetError
    if lost["to"] == "sources":
        message = Reason(
            "{to} holds what was synced from {source}: {deleted} of its files would be deleted, {replaced} replaced",
            to=lost["dest"],
            source=" and ".join(f"{source['host']}:{source['path']}" for source in sources),
            deleted=deleted,
            replaced=replaced,
        )
        hint = f"--to FOLDER keeps both; to replace it: {line(deleted, True)}"
        error = PreflightError(message, host=host, kind=OTHER, hint=hint)
    else:
        message = Reason(
            "{deleted} of the {of} files that were delivered to {to} would be deleted{inside}: {names}; "
            "nothing was sent",
            deleted=deleted,
            of=lost["of"],
            to=lost["dest"],
            inside=f", most of {lost['folder']}/" if lost["folder"] else "",
            names=few(lost["named"], NAMED, deleted),
        )
        hint = f"if they are meant to go: {line(deleted, bool(sources))}; any number of them: --max-delete=all"
        error = UsageError(message, host=host, kind=MOST, hint=hint)
    shown = replaced if lost["to"] == "sources" else None
    answer = Synced(lost["dest"], source=sources[-1] if sources else None, deleted=deleted, replaced=shown)
    return Result(host, False, error=error, answer=answer)


def question(refused: Sequence[Result], last: str = "Replace them? They are kept on the node for 30 days") -> str:
    """Returns the question to the user: the losses with their hosts, then `last`."""
    causes = by_cause([(r.host, r.error.message, None) for r in refused if r.error is not None])
    return "\n".join([*(f"{fold(cause.whose)}: {cause.message}" for cause in causes), last])


def consent(command: str) -> str:
    """Returns the hint about files in the way: the command lines that replace these files, and that leave them in
    place."""
    return f"to replace it: {command} --force; to leave what is the node's: {command} --keep"
