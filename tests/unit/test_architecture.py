"""ARCHITECTURE.md and CONTRIBUTING.md name what is there, and all rooms of the house."""

from __future__ import annotations

import re
from pkgutil import resolve_name

import pytest

from tests.pages import PAGES, ROOT

ARCHITECTURE = PAGES[ROOT / "ARCHITECTURE.md"]
BOTH = ARCHITECTURE + PAGES[ROOT / "CONTRIBUTING.md"]
PATHS = set(re.findall(r"(?<![\w./~])((?:fleet|tests|tools|examples|\.ci)/[\w./]*\w/?)", BOTH))
PROGRAMS = set(re.findall(r"(?<![\w/])(node/\w+/\w+)", ARCHITECTURE))
GLOSSARY = re.findall(
    r"`([^`]+)`", "".join(re.findall(r"(?m)^\|[^|]*\|[^|]*\|([^|]*)\|$", ARCHITECTURE.split("## Glossary")[1]))
)


@pytest.mark.parametrize("path", sorted(PATHS))
def test_a_path_that_is_named_exists(path: str) -> None:
    """Capitals stand for a name of the reader's: fleet/ops/VERB.py."""
    assert any(ROOT.glob(re.sub(r"\b[A-Z]+\b", "*", path.rstrip("/")))), path


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_node_program_that_is_named_exists(program: str) -> None:
    assert (ROOT / f"fleet/{program}.py").exists()


@pytest.mark.parametrize("name", GLOSSARY)
def test_a_name_of_the_glossary_exists(name: str) -> None:
    resolve_name(f"fleet.{name}")


def test_every_room_is_in_the_picture() -> None:
    picture = ARCHITECTURE.split("## A verb")[0]
    rooms = {path.parent.relative_to(ROOT).as_posix() + "/" for path in ROOT.glob("fleet/*/*.py")}
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("fleet/*.py")}
    unsaid = {"fleet/__init__.py", "fleet/__main__.py"}
    assert {each for each in rooms | modules if each not in picture} - unsaid == set()
