"""What fleet tells people to write exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fleet.cli.line.command import SETTINGS
from fleet.cli.line.verbs import VERBS
from fleet.cli.main import cli

FLEET = Path(__file__).parents[2] / "fleet"


# options that messages name and that are not fleet's but the script's, DeepSpeed's, docker's, pip's, ps's
FOREIGN = {
    *("--crypt-method", "--sha-rounds"),  # chpasswd's
    *("--bind", "--make-rprivate", "--reuid", "--regid", "--clear-groups"),  # of mount, setpriv
    *("--jobs", "--me", "--array", "--signal", "--export", "--clu"),  # of Slurm
    *("--master_addr", "--master_port"),  # of torchrun
    *("--from-file", "--from-env-file", "--prefix", "--tail", "--max-log-requests", "--nv"),  # of kubectl, apptainer
    *("--progress-bar", "--only-binary", "--python-version"),  # of pip
    *("--node-rank", "--map-by", "--tasks-per-node", "--nth"),  # of fleet.pyz, mpirun, flux
    "--autotuning",
    "--deepspeed_config",
    "--list",
    "--local",
    "--bind_cores_to_rank",
    "--no_local_rank",
    *("--local_rank", "--local-rank"),
    "--privileged",
    "--no-index",
    "--no-deps",
    "--requirement",
    "--constraint",
    "--sort",
    "--hostfile",
    "--include",
}


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string but docstrings, with its line; what an f-string fills in reads X."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inner = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | inner:
            yield node.lineno, node.value


def options_of(command: click.Command) -> set[str]:
    ctx = click.Context(command, **SETTINGS)
    found = {flag for param in command.get_params(ctx) for flag in [*param.opts, *param.secondary_opts]}
    if isinstance(command, click.Group):
        found.update(*(options_of(command.get_command(ctx, name) or cli) for name in command.list_commands(ctx)))
    return found


OPTIONS = {verb: options_of(cli.get_command(click.Context(cli), verb) or cli) for verb in VERBS}


ALL = {option for options in OPTIONS.values() for option in options} | {"--version"}


def wrong(text: str) -> list[str]:
    """What of fleet a message names that does not exist."""
    found = []
    text = re.sub(r"(\bfleet [^';`\n]*?(?:\.py| -- | -m \S+))[^';`\n]*", r"\1", text)  # the script's own, the command's
    for match in re.finditer(r"(?<![\w./-])fleet ((?:-\w \S+ )*)([a-z][a-z-]*)([^;`\n]*)", text):
        verb, rest = match[2], match[3].partition("'")[0]
        if verb not in VERBS:
            # a command to copy, and no sentence about fleet: it is quoted, or goes on as none does
            quoted = text[match.start() - 1 : match.start()] in ("'", "`")
            found += [f"fleet {verb}"] if quoted or re.match(r"\s+(-|[A-Z]{2}|')", match[3]) else []
        else:
            found += [
                f"fleet {verb} {word}"
                for word in re.findall(r"(?<!\S)--?[a-z][\w-]*", rest)
                if word not in OPTIONS[verb]
            ]
    if " " in text.strip() and "%(complete_func)s" not in text:  # else it is a word of some argv, or a shell's script
        found += [word for word in re.findall(r"(?<![\w=/-])--[a-z][\w-]*", text) if word not in ALL | FOREIGN]
    return found


@pytest.mark.slow
def test_no_message_names_a_verb_or_an_option_that_does_not_exist() -> None:
    seen, found = 0, []
    for path in sorted(FLEET.rglob("*.py")):
        if "shipped" in path.parts:
            continue
        for line, text in texts(ast.parse(path.read_text("utf-8"))):
            seen += "fleet " in text or "--" in text
            found += [f"{path.relative_to(FLEET.parent)}:{line}: {name}" for name in wrong(text)]
    assert found == [] and seen > 100


def test_no_help_names_one_either() -> None:
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        for text in (command.help or "", *(getattr(param, "help", None) or "" for param in command.params)):
            assert wrong(text) == [], (verb, text)


@pytest.mark.parametrize(
    "text", ["'fleet check --nonsense' tests it", "run 'fleet peak'", "fleet halt RUN ends it", "give it --nodal"]
)
def test_the_test_would_find_one(text: str) -> None:
    assert wrong(text)
