from fleet.ops.background import keeper as main

__all__ = ["main"]
