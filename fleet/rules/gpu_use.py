"""Judges by samples if a GPU is free, or busy at little power. A GPU with unknown values is neither."""

from __future__ import annotations

from fleet.protocol.messages.samples import GpuSample

# A GPU that only waits in a collective is "100 % busy" and draws about a third of its power. So may a GPU with kernels
# that are bound by memory: power alone does not distinguish the two.
COLD_USE, COLD_POWER = 95.0, 0.45
FREE_USE, FREE_MEMORY = 5.0, 1 << 30


def is_cold(gpu: GpuSample) -> bool:
    """Is true for a GPU that is busy and draws little power."""
    use, power, limit = gpu["use"], gpu["power"], gpu["power_limit"]
    return use is not None and power is not None and use >= COLD_USE and power < COLD_POWER * (limit or 0.0)


def is_free(gpu: GpuSample) -> bool:
    """Is true for a GPU that no process computes on, and that holds next to nothing."""
    use, memory = gpu["use"], gpu["memory"]
    idle = use is not None and use <= FREE_USE and memory is not None and memory < FREE_MEMORY
    return idle and not gpu["runs"] and gpu["others"] == 0
