"""Finds the files that come with fleet: inventories, playbooks, scripts, and the texts of `fleet help TOPIC`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

# In a clone these names are links to the folders next to fleet/; in an installed fleet they are the folders themselves.
FOLDERS = ("hostfiles", "playbooks", "examples")


def shipped() -> dict[str, Path]:
    """Returns name -> path of every file that comes with fleet, such as "playbooks/demo.yaml"."""
    root = Path(str(files("fleet") / "shipped"))
    return {
        f"{folder}/{path.name}": path
        for folder in FOLDERS
        for path in sorted((root / folder).iterdir())
        if path.is_file()
    }


def topics() -> dict[str, str]:
    """Returns the texts of `fleet help TOPIC` by their names; each begins with a question."""
    folder = Path(str(files("fleet") / "cli/topics"))
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.txt"))}


def find(name: str, *folders: str) -> str | None:
    """Returns the full name ("playbooks/demo.yaml") of the shipped file with this full name or file name; None if there
    is none in `folders`."""
    known = [known for known in shipped() if known.partition("/")[0] in (folders or FOLDERS)]
    return next((full for full in known if name in (full, full.partition("/")[2])), None)
