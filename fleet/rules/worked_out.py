"""Remedies that are worked out of what a log says, for the table of hints. Pure."""

from __future__ import annotations

import re

from fleet.rules.advice import UNEVEN

GONE = "another rank went away first; its own log says why"


def batch_sizes(found: re.Match[str]) -> str:
    """The numbers that would fit where DeepSpeed's train_batch_size does not."""
    train, micro, steps, ranks = map(int, found.groups())
    fitting = [f"train_batch_size {micro * steps * ranks}"]
    each, rest = divmod(train, ranks)
    if not rest and each % micro == 0:
        fitting.append(f"gradient_accumulation_steps {each // micro}")
    elif not rest and each % steps == 0:
        fitting.append(f"train_micro_batch_size_per_gpu {each // steps}")
    how = ", or ".join(fitting)
    return f"this run has {ranks} ranks: {how} would fit; DeepSpeed works out what is left away of the three"


def gpu_memory(found: re.Match[str]) -> str:
    """Whose memory it is, where torch tells."""
    others = f"; process {found[1]} holds {found[2]} of it" if found[1] else ""
    return (
        f"GPU memory ran out{others}: a smaller batch, activation checkpointing or a higher ZeRO stage; "
        "'fleet exec -- nvidia-smi' shows who else uses it"
    )


def not_joined(found: re.Match[str]) -> str:
    """Of a store that not all came to."""
    joined, wanted = int(found[1]), int(found[2])
    return (
        f"{joined} of {wanted} came to the master: the others' own logs say why, or a firewall keeps them from it; "
        "'fleet check' compares them"
    )


def lament(found: re.Match[str]) -> str:
    """Of a rank that another one has left, or has kept waiting."""
    if found["first"]:
        return (
            "rank 0 had failed, or was busy for longer than others wait: its log says; init_process_group(timeout=...)"
        )
    if found["missing"]:
        return f"rank {found['missing']} never came to a barrier that others were in: its log says where it was"
    if found["waited"]:
        return f"a rank never came to a collective that others were in; uneven data? {UNEVEN}"
    return GONE
