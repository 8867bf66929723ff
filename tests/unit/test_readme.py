"""What the README and the playbooks show must be what fleet accepts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from fleet.cli.play import CliVerbs, command_of
from fleet.cli.verbs import VERBS
from fleet.errors import InventoryError
from fleet.inventory import load as load_inventory
from fleet.ops.sync.section import read_section
from fleet.playbook import load, parse
from tests.command_lines import accept

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S)
COMMANDS = [
    line[2:] for kind, text in BLOCKS if kind == "console" for line in text.splitlines() if line.startswith("$ fleet ")
]
PAGES = {path: path.read_text("utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
YAML = [text for kind, text in BLOCKS if kind == "yaml"]
VARS = {"password_file": "pw"}


def test_the_readme_shows_every_verb() -> None:
    words = {word for command in COMMANDS for word in shlex.split(command)}
    assert set(VERBS) - words == set()


def test_the_check_refuses_what_does_not_exist() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        accept("fleet launch --gpus 8 train.py")
    with pytest.raises(click.UsageError):
        accept("fleet -i lab launch")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_accepted(command: str) -> None:
    accept(command)


def test_options_named_in_the_text_exist() -> None:
    params = [param for verb in VERBS for param in command_of(verb).params]
    known = {option for param in params for option in [*param.opts, *param.secondary_opts]} | {"--link", "--no-binary"}
    prose = re.sub(r"^```.*?^```|^\| .*? \| ", "", "\n".join(PAGES.values()), flags=re.M | re.S)
    named = set(re.findall(r"`[^`]*?(--[a-z][a-z-]+)", prose))
    assert len(named) > 15
    assert named - known == set()


def test_the_yaml_blocks_are_valid(tmp_path: Path) -> None:
    inventory, section, playbook = YAML
    (tmp_path / "fleet.yaml").write_text(inventory + section)
    loaded = load_inventory(tmp_path / "fleet.yaml")
    assert [h.name for h in loaded.hosts][-1] == "rented1"
    assert read_section(loaded).data == ("/data/imagenet:/data/",)
    assert len(parse(playbook, "README.md", CliVerbs(), VARS)) == 4


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yaml")), ids=lambda p: p.name)
def test_each_playbook_is_valid(path: Path) -> None:
    assert len(load(path, CliVerbs(), VARS)) > 1
    with pytest.raises(InventoryError, match="password_file"):
        load(path, CliVerbs())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", PAGES[page]):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        heads = (
            {head.lower().replace(" ", "-") for head in re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M)}
            if anchor
            else {anchor}
        )
        assert anchor in heads, link


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_named_in_the_text_are_accepted(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.M | re.S)
    for command in re.findall(r"`(fleet [^`]*)`", prose):
        for line in command.split(" && "):
            if "..." in line:
                continue
            try:
                accept(line)
            except (click.BadOptionUsage, click.MissingParameter) as error:  # named only: `fleet sync --data`
                assert isinstance(error, click.MissingParameter) or "requires an argument" in error.message, line


def test_the_files_and_folders_it_names_exist() -> None:
    for name in re.findall(r"^    (fleet/[a-z_./]+?/?)(?:,| )", README, re.M):
        assert (ROOT / name).exists() or (ROOT / f"{name}.py").exists(), name
