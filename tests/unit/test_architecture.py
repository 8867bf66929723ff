"""ARCHITECTURE.md, docs/internals.md and CONTRIBUTING.md name what is there, and all rooms of the house."""

from __future__ import annotations

import configparser
import re
from pkgutil import resolve_name

import pytest

from tests.pages import PAGES, ROOT

ARCHITECTURE, INTERNALS = PAGES[ROOT / "ARCHITECTURE.md"], PAGES[ROOT / "docs/internals.md"]
# what a recipe made was thrown away
BOTH = re.sub(r"(?m)^.* \| +\d+ \++$", "", ARCHITECTURE + INTERNALS + PAGES[ROOT / "CONTRIBUTING.md"])
PATHS = set(re.findall(r"(?<![\w./~])((?:fleet|tests|tools|examples|\.ci)/[\w./]*\w/?)", BOTH))
PROGRAMS = set(re.findall(r"(?<![\w/])(node/\w+(?:/\w+)+)", ARCHITECTURE + INTERNALS))
GLOSSARY = re.findall(
    r"`([^`]+)`", "".join(re.findall(r"(?m)^\|[^|]*\|[^|]*\|([^|]*)\|$", INTERNALS.split("## Glossary")[1]))
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


def test_the_picture_has_every_room_in_the_order_of_the_imports() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    layers = config["importlinter:contract:layers"]["layers"].split("\n")[1:]
    picture = re.findall(r"(?m)^fleet/([a-z_]+)", ARCHITECTURE)
    at = {name.strip().removeprefix("fleet."): n for n, layer in enumerate(layers) for name in layer.split("|")}
    assert [at[room] for room in picture] == sorted(at[room] for room in picture)
    packages = {path.parent.name for path in ROOT.glob("fleet/*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("fleet/[a-z]*.py")}
    assert packages | modules == set(picture)
