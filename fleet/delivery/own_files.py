"""What lies in the way of a sync and is the node's own: what is to become of it, and how that is shown."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.errors import PreflightError, Reason
from fleet.inventory.nodeset import fold
from fleet.model import Result
from fleet.protocol.messages.code import OwnFile
from fleet.rules.causes import by_cause
from fleet.rules.units import counted, few, seconds, size_text

KIND = "own-files"
NAMED = 5
KINDS = {"d": "a folder", "l": "a link", "o": "no file"}


def as_message(force: bool | Sequence[str]) -> bool | list[str]:
    return force if isinstance(force, bool) else list(force)


def error(host: str, files: Sequence[OwnFile], hint: str) -> PreflightError:
    """The refusal to replace what is this host's own. hint: how to say what is to become of it."""
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


def question(refused: Sequence[Result]) -> str:
    """What would be replaced where, for the user to decide."""
    causes = by_cause([(r.host, r.error.message, None) for r in refused if r.error is not None])
    lines = [f"{fold(cause.whose)}: {cause.message}" for cause in causes]
    return "\n".join([*lines, "Replace them? They are kept on the node for 30 days"])


def consent(command: str) -> str:
    """How to say what is to become of what is in the way."""
    return f"{by_force(command)}; to leave what is the node's: {command} --keep"


def by_force(command: str) -> str:
    return f"to replace it: {command} --force"
