"""A folder for sys.path that has torch, what it needs, pip and numpy, and nothing else of this environment: links."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def torch_site(folder: Path) -> Path:
    """Makes the folder and returns it."""
    folder.mkdir(parents=True)
    left, known = ["torch", "numpy", "pip"], set[str]()
    while left:
        name = canonicalize_name(left.pop())
        if name in known:
            continue
        known.add(name)
        found = distribution(name)
        needs = [Requirement(text) for text in found.requires or ()]
        left += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
        for top in {file.parts[0] for file in found.files or () if ".." not in file.parts}:
            path = Path(str(found.locate_file(top)))
            if top != "__pycache__" and path.exists() and not (folder / top).is_symlink():
                (folder / top).symlink_to(path)
    return folder
