"""Checkpoints that only some nodes have: what ranks say that go on from one, and what those that find none. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

# as transformers, accelerate and Lightning name what is not there, and as scripts do; the path is \1 or \2
MISSING = (
    r"(?:No valid checkpoint found in output directory|Can't find a valid checkpoint at|Tried to find|"
    r"Checkpoint file not found:|Checkpoint at) \(?([^\s(){}]+)|"
    r"(?:FileNotFoundError|No such file or directory).*?[\s'\"]"
    r"([^\s'\"]*(?:snapshot|checkpoint|ckpt|global_step|\.(?:pt|pth|safetensors|distcp))[^\s'\"]*)"
)
_GOES_ON = re.compile(
    r"^(?!.*\bFile \").*\b(?:resum(?:ed|ing)\b|resumes? (?:from|at|training)\b|goes on after\b|"
    r"continu(?:es|ed|ing) (?:the )?(?:training|from)\b|"
    r"(?:load|restor)(?:ed|ing|es)\b.{0,60}?\b(?:checkpoint|snapshot)).*$",
    re.IGNORECASE | re.MULTILINE,
)
_FILE = re.compile(r"[^\s'\"(),:]*\.(?:pt|pth|ckpt|bin|safetensors)\b")


def spread(path: str, host: str = "HOST") -> str:
    return f"'fleet sync --data {shlex.quote(path)} --from {host}'"


def missing(found: re.Match[str]) -> str:
    """Of a path that one node has not got, and others may have."""
    path = found[1] or found[2]
    return (
        f"{path} is not on that node: a checkpoint that only another one wrote? {spread(path)} gives it to all; then "
        "save on every node (LOCAL_RANK 0), or on a disk that they share"
    )


def disagreed(said: Mapping[str, str]) -> str | None:
    """What ranks say that went on from a checkpoint while others began anew. said: by host, what its first rank wrote
    in this attempt; None where all of them speak of one, or none does."""
    lines = {host: found[0].strip() for host, text in said.items() if (found := _GOES_ON.search(text))}
    if not lines or len(lines) == len(said):
        return None
    host, line = next(iter(lines.items()))
    file = _FILE.search(line)
    return (
        f"Only {host} says '{line[:80]}': if the others found no checkpoint, "
        f"{spread(file[0] if file else 'PATH', host)} gives it to all"
    )
