from fleet.ops.background import janitor as main

__all__ = ["main"]
