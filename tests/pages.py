"""What the README and docs/ show, as the tests take it: blocks of code, each with its page and its heading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATHS = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
PAGES = {path: path.read_text("utf-8") for path in PATHS if path.name != "CHANGELOG.md"}
FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """kind: console, yaml, json, text ..."""

    page: str
    heading: str
    kind: str
    text: str

    @property
    def commands(self) -> list[str]:
        """What is typed there of fleet, without the prompt."""
        return [line[2:] for line in self.text.splitlines() if self.kind == "console" and line.startswith("$ fleet ")]


def _blocks(path: Path) -> Iterator[Block]:
    text = PAGES[path]
    for fenced in FENCED.finditer(text):
        headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text[: fenced.start()]), re.M)
        yield Block(str(path.relative_to(ROOT)), headings[-1], fenced[1], fenced[2])


BLOCKS = [block for path in PAGES for block in _blocks(path)]


def prose(path: Path) -> str:
    """A page without its blocks."""
    return FENCED.sub("", PAGES[path])
