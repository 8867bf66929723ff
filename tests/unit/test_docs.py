"""What the README, docs/ and the playbooks show is what fleet accepts, and what is made from the code is up to date."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

import fleet
from fleet import errors
from fleet.cli.line.command import SETTINGS
from fleet.codec import plain
from fleet.engines.translate import options_of
from fleet.model import Host
from tests.command_lines import VERBS, accept, command_of, steps
from tests.in_process import fleet_here
from tests.pages import BLOCKS, PAGES, ROOT, Block, prose
from tools import reference

VARS = {"password_file": "pw"}
COMMANDS = {(block.page, command): None for block in BLOCKS for command in block.commands}
pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def of_kind(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


def test_the_guide_shows_every_verb() -> None:
    words = {word for page, command in COMMANDS if page == "docs/guide.md" for word in shlex.split(command)}
    assert set(VERBS) - words == set()


def test_the_readme_is_short_and_the_same_in_both_languages() -> None:
    texts = [(ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md")]
    assert max(len(text.splitlines()) for text in texts) <= 160
    english, chinese = "README.md", "README.zh-CN.md"
    assert [block.text for block in BLOCKS if block.page == english] == [
        block.text for block in BLOCKS if block.page == chinese
    ]
    links = [re.findall(r"\]\(([^)]+)\)", text) for text in texts]
    assert [link for link in links[0] if "README" not in link] == [link for link in links[1] if "README" not in link]
    rows = [re.findall(r"^\|.*`fleet.*$", text, re.M) for text in texts]
    assert [re.findall("`fleet[^`]*`", row) for row in rows[0]] == [re.findall("`fleet[^`]*`", row) for row in rows[1]]


def test_the_check_refuses_what_does_not_exist() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        accept("fleet launch --gpus 8 train.py")
    with pytest.raises(click.UsageError):
        accept("fleet -i lab launch")


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_each_command_is_accepted(page: str, command: str) -> None:
    accept(command)


def test_options_named_in_the_text_exist() -> None:
    verbs = [command_of(verb) for verb in VERBS]
    params = [param for verb in verbs for param in verb.get_params(click.Context(verb, **SETTINGS))]
    known = {option for param in params for option in [*param.opts, *param.secondary_opts]}
    known |= {"--link"}  # of Slurm; then of pip
    known |= {"--no-binary", "--hash", "--only-binary", "--pre", "--prefer-binary", "--require-hashes", "--no-index"}
    known |= {"--extra-index-url", "--index-url", "--find-links", "--trusted-host"}
    known |= {"--overlap", "--ntasks-per-node", "--signal", "--jobid", "--cpu-bind", "--container-mounts"}
    known |= {"--map-by", "--nth"}  # of Open MPI; of Flux
    known |= {f"--{name}" for name in options_of("sbatch")}
    text = re.sub(r"^\| .*? \| ", "", "\n".join(map(prose, (path for path in PAGES if of_users(path)))), flags=re.M)
    named = set(re.findall(r"`[^`]*?(--[a-z][a-z-]+)", text))
    assert len(named) > 15
    assert named - known == set()


def of_users(page: Path) -> bool:
    """Not of contributors, whose options are those of other programs too; nor made from the options themselves."""
    return page.name.startswith("README") or page.parent == ROOT / "docs" and page.name != "commands.md"


@pytest.mark.parametrize("block", of_kind("yaml"), ids=lambda block: f"{block.page}:{block.heading}")
def test_the_yaml_blocks_are_valid(block: Block, tmp_path: Path) -> None:
    shown = yaml.safe_load(block.text)
    if isinstance(shown, list):
        assert len(steps(block.text, VARS if "password_file" in block.text else {})) >= 3
        return
    (tmp_path / "fleet.yaml").write_text(block.text if "hosts" in shown else f"hosts: [gpu1]\n{block.text}")
    loaded = fleet.open(tmp_path / "fleet.yaml").inventory
    if "sync" in shown:
        assert loaded.sync["data"] == ["/data/imagenet:/data/"]
    if "hosts" in shown:
        assert [host.name for host in loaded.hosts][-1] == "rented1"


def test_the_hostfile_shown_is_valid(tmp_path: Path) -> None:
    (block,) = (block for block in of_kind("text") if block.heading == "Hostfiles")
    (tmp_path / "hostfile").write_text(block.text)
    assert [host.slots for host in fleet.open(tmp_path / "hostfile").inventory.hosts] == [
        8,
        8,
        8,
        None,
        *[4] * 4,
        None,
        None,
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yaml")), ids=lambda p: p.name)
def test_each_playbook_is_valid(path: Path) -> None:
    needed = VARS if "password_file:" in path.read_text() else {}
    assert len(steps(path, needed)) > 1
    if needed:
        with pytest.raises(errors.InventoryError, match="password_file"):
            steps(path)


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", PAGES[page]):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, link


@pages
def test_commands_named_in_the_text_are_accepted(page: Path) -> None:
    for command in re.findall(r"`(fleet [^`]*)`", prose(page)):
        for line in command.split(" && "):
            if "..." in line:
                continue
            try:
                accept(line)
            except (click.BadOptionUsage, click.MissingParameter) as error:  # named only: `fleet sync --data`
                assert isinstance(error, click.MissingParameter) or "requires an argument" in error.message, line


@pytest.mark.parametrize("block", of_kind("json"), ids=lambda block: f"{block.page}:{block.heading}")
def test_the_json_shown_is_json(block: Block) -> None:
    assert isinstance(json.loads(block.text), dict)


@pages
def test_what_is_made_from_the_code_is_up_to_date(page: Path) -> None:
    assert reference.renewed(PAGES[page]) == PAGES[page], "python -m tools.reference"


def test_all_that_can_be_made_from_the_code_stands_on_a_page() -> None:
    assert {name for text in PAGES.values() for _, name, _ in reference.BLOCK.findall(text)} == set(reference.PARTS)


def test_every_exit_code_is_told() -> None:
    told = set(re.findall(r"^\| (\d+) \|", PAGES[ROOT / "docs/exit-codes.md"], re.M))
    assert told == {str(value) for name, value in vars(errors).items() if name.startswith("EXIT_")}


def test_every_variable_that_the_head_reads_is_told() -> None:
    """Those of shells that ask for a completion are between fleet and the shell."""
    read = set()
    for path in ROOT.glob("fleet/**/*.py"):
        if not {"remote", "node"} & {*path.relative_to(ROOT).parts}:
            read |= set(re.findall(r"""environ(?:\.get\(|\[)\s*["'](\w+)""", path.read_text("utf-8")))
    told = set(re.findall(r"`([A-Z_]+)`", PAGES[ROOT / "docs/environment.md"]))
    assert {name for name in read if not name.startswith(("COMP_", "_FLEET_COMPLETE"))} - told == set()


def test_the_finding_shown_has_the_keys_of_one() -> None:
    (shown,) = (json.loads(block.text) for block in of_kind("json") if '"remedy"' in block.text)
    found = fleet_here(Host("a", "a", python="/nosuch/python")).check().findings
    assert list(shown) == list(plain(found[0]))


def test_the_tests_that_the_security_page_names_exist() -> None:
    """By their whole path, or beside the one before."""
    folder, named = "", re.findall(r"`((?:tests/[a-z/]+)?[a-z_/]+\.py)`", (ROOT / "docs/security.md").read_text())
    for name in named:
        folder = name.rpartition("/")[0] or folder
        assert (ROOT / folder / name.rpartition("/")[2]).is_file(), name
    assert len(named) > 40
