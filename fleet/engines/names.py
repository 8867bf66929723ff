"""fleet's own engines: where each one's class is."""

from __future__ import annotations

DEFAULT = "torchrun"
OWN = {
    "torchrun": "fleet.engines.torchrun:Torchrun",
    "deepspeed": "fleet.engines.deepspeed:DeepSpeed",
    "accelerate": "fleet.engines.accelerate:Accelerate",
    "colossalai": "fleet.engines.colossalai:ColossalAI",
    "command": "fleet.engines.command:AnyCommand",
}
