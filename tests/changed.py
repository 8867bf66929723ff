"""Programs of the node half as they are shipped, but for what a test puts into them."""

from __future__ import annotations

from pathlib import Path

import fleet
from fleet.transport.program import closure, pack


def changed(name: str, first: str) -> bytes:
    """What program.shipped(name) is, with a module in front of it. `first` is its text, and runs before main(): it
    imports the program's own modules and puts other things into them."""
    module = f"fleet.node.{name}"
    return pack("changed", {**closure(module), "changed": f"{first}\nfrom {module} import main\n".encode()})


def programs() -> list[str]:
    """The names of all programs: the modules of the node half with a main() that are not started as a file."""
    root = Path(fleet.__file__).parent / "node"
    texts = {path: path.read_text() for path in sorted(root.rglob("*.py"))}
    return [
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path, text in texts.items()
        if "\ndef main(" in text and "__main__" not in text
    ]
