"""What fleet tells people to write exists, and stands there with what they wrote themselves."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fleet.answers.runs import LeftAlone
from fleet.cli.line.hints import as_typed, in_document, of_line, remember
from fleet.cli.line.options import Settings
from fleet.cli.line.verbs import VERBS
from fleet.cli.main import cli, run
from fleet.cli.run.follow import show_summary
from fleet.model import Report
from tests.command_lines import accept

FLEET = Path(__file__).parents[2] / "fleet"
# options that messages name and that are not fleet's but the script's, DeepSpeed's, docker's, pip's, ps's
FOREIGN = {
    *("--bind", "--make-rprivate", "--reuid", "--regid", "--clear-groups"),  # of mount, setpriv
    *("--jobs", "--me", "--array"),  # of Slurm
    *("--node-rank", "--map-by"),  # of fleet.pyz, mpirun
    "--autotuning",
    "--deepspeed_config",
    "--list",
    "--local",
    "--bind_cores_to_rank",
    "--no_local_rank",
    "--local_rank",
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
    found = {flag for param in command.params for flag in [*param.opts, *param.secondary_opts]} | {"--help", "-h"}
    if isinstance(command, click.Group):
        ctx = click.Context(command)
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
    "text", ["'fleet check --network' tests it", "run 'fleet top'", "fleet halt RUN ends it", "give it --nodal"]
)
def test_the_test_would_find_one(text: str) -> None:
    assert wrong(text)


@pytest.fixture
def typed() -> Iterator[Settings]:
    settings = Settings()
    with of_line():
        remember(settings)
        yield settings


def test_a_hint_repeats_what_the_line_said(typed: Settings) -> None:
    typed.inventory, typed.hosts = "lab", "lab02"
    assert as_typed("compare them, then 'fleet setup-ssh'") == "compare them, then 'fleet -i lab -w lab02 setup-ssh'"
    assert (
        as_typed("fleet exec -- df -h; or fleet sync")
        == "fleet -i lab -w lab02 exec -- df -h; or fleet -i lab -w lab02 sync"
    )
    assert as_typed("fleet hosts", selection=False) == "fleet -i lab hosts"


@pytest.mark.parametrize(
    "text",
    [
        "fleet lab up 4",
        "fleet help exec",
        "see fleet exec --help",
        "fleet sets it per node",
        "/opt/fleet exec",
        "",
        "fleet -i other -w a exec -- true",
    ],
)
def test_what_is_no_command_over_hosts_stays(text: str, typed: Settings) -> None:
    typed.inventory, typed.hosts = "lab", "lab02"
    assert as_typed(text) == text


def test_a_hint_that_says_who_keeps_its_own(typed: Settings) -> None:
    typed.hosts, typed.exclude = "gpu[01-04]", "gpu02"
    assert as_typed("fleet setup-ssh -w gpu03") == "fleet -x gpu02 setup-ssh -w gpu03"
    assert as_typed("fleet exec -- grep -w x") == 'fleet -w "gpu[01-04]" -x gpu02 exec -- grep -w x'


def test_setup_ssh_is_named_without_a_transport_that_it_refuses(typed: Settings) -> None:
    typed.transport = "openssh"
    assert as_typed("fleet setup-ssh -w a") == "fleet setup-ssh -w a"
    assert as_typed("fleet check") == "fleet --transport openssh check"


@pytest.mark.parametrize("value", ["my hosts", "gpu[01-04],@a", "$(id)", "it's", 'a"b', "~/x", "a\\b", "!x", "#a"])
def test_what_is_repeated_is_read_back_by_a_shell(value: str, typed: Settings) -> None:
    typed.inventory = typed.hosts = value
    ctx = accept(as_typed("fleet check"))
    assert shlex.split(as_typed("fleet check")) == ["fleet", "-i", value, "-w", value, "check"]
    assert ctx.info_name == "check"


def test_it_is_told_so_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my hosts").write_text("a\nb\n")
    assert run(["-i", "my hosts", "exec", "-w", "a", "--", ""]) == 2
    assert capsys.readouterr().err.splitlines()[1] == '  hint: fleet -i "my hosts" -w a exec -- nvidia-smi -L'
    for words in (["--", ""], ["--shell", ""], ["--shell", " "]):
        assert run(["-i", "my hosts", "exec", *words]) == 2
        assert capsys.readouterr().err.startswith("error: the command is empty\n")
    assert run(["exec", "--", ""]) == 2
    assert capsys.readouterr().err.splitlines()[1] == "  hint: fleet exec -- nvidia-smi -L"
    assert run(["-i", "my hosts", "--json", "exec", "-w", "a", "--", ""]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == 'fleet -i "my hosts" -w a exec -- nvidia-smi -L'


def test_what_to_do_with_a_run_that_was_left_is_told_so(typed: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    typed.inventory = "lab"
    with click.Context(click.Command("launch")):
        show_summary(Report("launch", (), 0, answer=LeftAlone("r", 1, "runs/r")), None)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "'fleet -i lab ps' shows it, 'fleet -i lab logs -f' its output, 'fleet -i lab stop r' ends it" in said, said


def test_a_document_has_hints_as_they_are_printed(typed: Settings) -> None:
    typed.inventory, typed.hosts = "lab", "lab02"
    host = {"stdout": "fleet sync", "error": {"kind": "sync", "message": "fleet sync", "hint": "then 'fleet sync'"}}
    told = in_document({"hosts": {"a": host}, "next": ["fleet logs x"], "error": {"kind": "inventory", "hint": None}})
    assert told["hosts"]["a"]["error"] == {**host["error"], "hint": "then 'fleet -i lab -w lab02 sync'"}  # type: ignore[dict-item]
    assert told["hosts"]["a"]["stdout"] == "fleet sync" and told["next"] == ["fleet -i lab -w lab02 logs x"]
    assert in_document({"kind": "inventory", "hint": "fleet hosts"})["hint"] == "fleet -i lab hosts"
