"""Lists the classes of fleet's own engines."""

from __future__ import annotations

DEFAULT = "torchrun"
OWN = {
    "torchrun": "fleet.engines.torchrun:Torchrun",
    "deepspeed": "fleet.engines.deepspeed:DeepSpeed",
    "accelerate": "fleet.engines.accelerate:Accelerate",
    "colossalai": "fleet.engines.colossalai:ColossalAI",
    "command": "fleet.engines.command:AnyCommand",
}
