"""Finds what deserves a notice while a run continues: log lines that show a mistake which ends nothing, and ranks that
end before others. Each of these is reported once in a run."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.node.gang.silence import EARLY_SECONDS


@dataclass(frozen=True)
class Advice:
    """Describes a mistake that ends nothing. id: its name. sign: bytes of a log line that show it."""

    id: str
    sign: bytes
    message: str
    remedy: str


ADVICE = (
    Advice(
        "nccl-sockets",
        b"NET/Socket : Using",
        "NCCL sends over TCP sockets (NET/Socket)",
        "where hosts have InfiniBand or RoCE, 'fleet check' shows its ports; NCCL_IB_DISABLE=1 or a missing libibverbs "
        "keeps NCCL from it. On plain Ethernet it is as it should be",
    ),
    Advice(
        "zero3-not-saved",
        b"because stage3_gather_16bit_weights_on_model_save is False",
        "DeepSpeed did not save the model: under ZeRO-3 each rank has a part of its weights only",
        "set stage3_gather_16bit_weights_on_model_save in the configuration (accelerate: zero3_save_16bit_model), "
        "or make one file of a checkpoint with zero_to_fp32.py, which lies in it",
    ),
)
UNEVEN = "give every rank as many batches: DistributedSampler, drop_last=True, or torch's Join"


def early(rank: int, host: str, running: int) -> str:
    """Returns the notice for a rank that has ended well while others still run."""
    return f"rank {rank} on {host} ended {EARLY_SECONDS:.0f} s ago with exit code 0, {running} others still run"
