"""Computes remedies from the values in a log line, for the table of hints. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from fleet.inventory.nodeset import fold

DIFFER = (
    "collectives that differ in shape or order, or the network between the hosts: --env TORCH_DISTRIBUTED_DEBUG=DETAIL "
    "has torch compare them"
)


def batch_sizes(found: re.Match[str]) -> str:
    """Returns the hint for a train_batch_size of DeepSpeed that does not fit the ranks: it names values that would
    fit."""
    train, micro, steps, ranks = map(int, found.groups())
    fitting = [f"train_batch_size {micro * steps * ranks}"]
    each, rest = divmod(train, ranks)
    if not rest and each % micro == 0:
        fitting.append(f"gradient_accumulation_steps {each // micro}")
    elif not rest and each % steps == 0:
        fitting.append(f"train_micro_batch_size_per_gpu {each // steps}")
    how = ", or ".join(fitting)
    return f"this run has {ranks} ranks: {how} would fit; DeepSpeed works out what is left away of the three"


# -- checkpoints that only some nodes have
# messages of transformers, accelerate, Lightning and scripts about a missing checkpoint; the path is \1 or \2
NO_CHECKPOINT = (
    r"(?:No valid checkpoint found in output directory|Can't find a valid checkpoint at|Tried to find|"
    r"Checkpoint file not found:|Checkpoint at) \(?([^\s(){}]+)|"
    r"(?:FileNotFoundError|No such file or directory).*?[\s'\"]"
    r"([^\s'\"]*(?:snapshot|checkpoint|ckpt|global_step|\.distcp)[^\s'\"]*)"
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


def no_checkpoint(found: re.Match[str]) -> str:
    """Returns the hint for the path of a checkpoint that is missing on one node, and that other nodes may have."""
    path = found[1] or found[2]
    return (
        f"{path} is not on that node: a checkpoint that only another one wrote? {spread(path)} gives it to all; then "
        "save on every node (LOCAL_RANK 0), or on a disk that they share"
    )


def disagreed(texts: Mapping[str, str]) -> str | None:
    """Returns the finding that ranks of some hosts continue from a checkpoint while others begin again; None if all
    continue, or none does. texts: host -> output of its first rank in this attempt."""
    lines = {host: found[0].strip() for host, text in texts.items() if (found := _GOES_ON.search(text))}
    if not lines or len(lines) == len(texts):
        return None
    host, line = next(iter(lines.items()))
    file = _FILE.search(line)
    who = f"{host} says" if len(lines) == 1 else f"{fold(lines)} say"
    return (
        f"Only {who} '{line[:80]}': if the others found no checkpoint, "
        f"{spread(file[0] if file else 'PATH', host)} gives it to all"
    )
