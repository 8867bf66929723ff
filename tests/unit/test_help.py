"""Help: bare fleet, `fleet help`, groups, examples that are accepted, 80 columns, and options that say something."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fleet import errors
from fleet.cli.line.complete import complete
from fleet.cli.line.shipped import topics
from fleet.cli.line.verbs import VERB_GROUPS, VERBS
from fleet.cli.main import cli, run
from fleet.errors import InventoryError
from tests.command_lines import accept, commands_in, parse_options, steps
from tests.in_process import Terminal


def commands(group: click.Group = cli, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Every command by its words: (), ("exec",), ("lab", "up")."""
    ctx = click.Context(group)
    found: dict[tuple[str, ...], click.Command] = {above: group}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        words = (*above, name)
        found.update(commands(command, words) if isinstance(command, click.Group) else {words: command})
    return found


COMMANDS = commands()


def help_of(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["help", *words]) == 0
    return capsys.readouterr().out


def test_the_help_of_fleet_is_all_verbs_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    said = capsys.readouterr()
    assert said.err == "" and all(f"\n  {verb} " in said.out for verb in VERBS)
    assert [f"\n{heading}:\n" in said.out for heading in VERB_GROUPS] == [True] * 3
    assert len(said.out.splitlines()) <= 40 and max(map(len, said.out.splitlines())) <= 80
    assert run(["lab"]) == 0 and "Usage: fleet lab" in capsys.readouterr().out


def test_the_options_of_all_verbs_have_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(("options",), capsys)
    options = [option for param in cli.params if isinstance(param, click.Option) for option in param.opts]
    assert len(options) > 15 and all(option in text for option in options)


@pytest.mark.parametrize(("environ", "colours"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_help_has_colours_on_a_terminal(
    environ: dict[str, str], colours: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **environ}.items():
        monkeypatch.setenv(name, value)
    for words in (["--help"], ["launch", "--help"], ["help", "exec"], ["help"]):
        assert run(words) == 0
        plain = capsys.readouterr().out
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal := Terminal())
            assert run(words) == 0
        assert "\x1b[" not in plain and ("\x1b[" in terminal.text()) == colours
        assert click.unstyle(terminal.text()) == plain


@pytest.mark.parametrize("words", [words for words in COMMANDS if words], ids=" ".join)
def test_help_of_a_verb_is_what_its_own_option_says_and_fits(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(words, capsys)
    assert run([*words, "--help"]) == 0 and capsys.readouterr().out == text
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"(--[\w-]*-|[a-z]+-)$", text, re.M), "a word is broken at its hyphen"
    assert f"Usage: {' '.join(('fleet', *words))} " in text and "[x" not in text and "<=" not in text


@pytest.mark.parametrize("words", [words for words in COMMANDS if words], ids=" ".join)
def test_two_examples_each_and_fleet_takes_them(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[words]
    examples: tuple[str, ...] = command.examples  # type: ignore[attr-defined]
    assert len(examples) >= 2
    for example in examples:
        assert f"  $ {example}\n" in help_of(words, capsys)
        accept(example)


def test_what_is_no_example_is_refused() -> None:
    with pytest.raises(click.UsageError):
        accept("fleet check --nonsense")


def options_of(verb: str) -> list[click.Option]:
    params = COMMANDS[(verb,)].get_params(click.Context(COMMANDS[(verb,)]))
    return [param for param in params if isinstance(param, click.Option) and not param.hidden]


def row(option: click.Option, text: str) -> bool:
    return bool(re.search(rf"^  (-\w, )?{option.opts[-1]}(?![\w-])", text, re.M))


def test_many_options_are_those_of_a_day_first(capsys: pytest.CaptureFixture[str]) -> None:
    first = help_of(("launch",), capsys)
    assert run(["launch", "--help-all"]) == 0
    every = capsys.readouterr().out
    known = options_of("launch")
    shown = [param for param in known if row(param, first.partition("\nOptions of a day:\n")[2])]
    assert all(row(param, every) for param in known)
    assert 15 <= len(shown) <= 25 and {"--sync", "--nnodes", "--engine", "--hosts"} <= {p.opts[-1] for p in shown}
    assert first.endswith(f"\n{len(known) - len(shown)} more: fleet launch --help-all\n")
    assert len(first.splitlines()) <= 60


def test_all_options_are_completed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COMP_WORDS": "fleet launch --", "COMP_CWORD": "2"}.items():
        monkeypatch.setenv(name, value)
    assert complete(cli, "zsh_complete") == 0
    words = capsys.readouterr().out.split("\n")
    known = {name for param in options_of("launch") for name in param.opts if name.startswith("--")}
    assert {"--help", "--sync"} <= known <= {*words} and "--help-all" in words


def test_few_options_are_all_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "more: " not in help_of(("exec",), capsys) and run(["exec", "--help-all"]) == 2
    assert "--help-all" in capsys.readouterr().err


def test_options_are_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    for words, own in ("launch", "\nWhere, and how many:\n"), ("sync", "\nWheels:\n"):
        assert run([words, "--help-all" if words == "launch" else "--help"]) == 0
        text = capsys.readouterr().out
        assert text.index(own) < text.index("\nCommon options:\n") < text.index("  -w, --hosts")


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (("hosts",), ("--fanout", "--transport", "--connect-timeout", "--dry-run")),
        (("lab", "up"), ("--inventory", "--hosts", "--exclude", "--fanout", "--transport", "--connect-timeout")),
        (("setup-ssh",), ("--transport",)),
    ],
)
def test_no_option_is_offered_that_makes_no_sense(
    words: tuple[str, ...], absent: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(words, capsys)
    assert "--json" in text and not any(option in text for option in absent)


def test_what_makes_no_sense_is_accepted_before_and_behind_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostfile").write_text("a\n")
    assert run(["--fanout", "3", "hosts", "--connect-timeout", "3", "--dry-run", "--format", "names"]) == 0
    assert capsys.readouterr().out == "a\n"


def test_hosts_to_pick_are_refused_where_a_whole_lab_would_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "down", "-w", "lab02"]) == 2
    assert "fleet lab down takes no -w/--hosts" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "fleet exec --no_fold --connect_timeout 3 -- a_b --c_d",
        "fleet --dry_run --connect_timeout=3 launch --nproc_per_node 8 --master_addr=h train.py --lr_x 1",
        "fleet setup_ssh --password_file f --replace_key gpu_1",
        "fleet lab up --dry_run",
        "fleet hosts --format ssh_config",
        "fleet help setup_ssh",
    ],
)
def test_dashes_and_underscores_are_one(line: str) -> None:
    accept(line)


def test_every_option_of_every_verb_may_be_written_with_underscores() -> None:
    seen = set()
    for words, command in commands().items():
        for param in command.params:
            for option in [*param.opts, *param.secondary_opts] if isinstance(param, click.Option) else []:
                if "-" in option[2:]:
                    value = "" if param.is_flag else "=a_b"
                    given, rest = parse_options(command, f"--{option[2:].replace('-', '_')}{value}")
                    assert str(param.name) in given and not rest, (words, option)
                    assert param.is_flag or given[str(param.name)] in ("a_b", ["a_b"])
                    seen.add(option)
    assert {"--connect-timeout", "--nproc-per-node", "--no-mesh", "--replace-key", "--password-file"} <= seen


def test_what_belongs_to_the_command_or_the_script_keeps_its_spelling() -> None:
    assert accept("fleet exec --no_fold -- a_b --c_d").params["argv"] == ("a_b", "--c_d")
    given = accept("fleet launch --engine_arg=--bind_cores_to_rank train.py --no_cuda --nproc_per_node=2").params
    assert given["args"] == ("--no_cuda", "--nproc_per_node=2") and given["engine_args"] == ("--bind_cores_to_rank",)


def test_a_playbook_takes_both_spellings_and_neither_twice() -> None:
    text = "- setup_ssh: {password_file: pw}\n  ignore_errors: true\n- launch: {nproc_per_node: 2, script: a.py}"
    first, second = steps(text)
    assert first.argv == ("setup-ssh", "--password-file", "pw") and first.ignore_errors
    assert second.argv == ("launch", "--nproc-per-node", "2", "a.py")
    with pytest.raises(InventoryError, match="p:1: nproc-per-node is here twice"):
        steps("- launch: {nproc_per_node: 2, nproc-per-node: 4, script: a.py}")


def test_an_unknown_word_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "lab", "upp"]) == 2
    assert capsys.readouterr().err == "error: No such verb 'lab upp'\n  hint: did you mean 'up'?\n"
    assert run(["help", "nodeset"]) == 2 and "did you mean 'nodesets'?" in capsys.readouterr().err


@pytest.mark.parametrize("topic", topics())
def test_a_question_has_a_short_answer_whose_commands_are_real(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = topics()[topic]
    question, empty, *answer = text.splitlines()
    assert question.endswith("?") and not empty and len(answer) < 20
    assert max(map(len, text.splitlines())) <= 81 and text.endswith("\n")
    commands = [re.split(r"\s{2,}", line[4:])[0] for line in answer if line.startswith("  $ ")]
    quoted = commands_in("\n".join(line for line in answer if not line.startswith("  $ ")))
    assert topic == "completion" or len(commands) >= 1
    for command in commands:
        accept(command)
    for command in quoted:
        with contextlib.suppress(click.MissingParameter):  # named only: 'fleet launch'
            accept(command)
    assert f"  {topic} " in (listed := help_of((), capsys)) and question in listed
    assert help_of((topic,), capsys).endswith(text)


@pytest.mark.parametrize("topic", ["logs", "stop", "nothing", "slow", "nodesets", "exit-codes", "completion"])
def test_the_questions_that_people_have(topic: str) -> None:
    assert topic in topics()


def test_an_answer_tells_every_exit_code() -> None:
    told = set(re.findall(r"^  (\d+)  ", topics()["exit-codes"], re.M))
    assert {str(value) for name, value in vars(errors).items() if name.startswith("EXIT_")} - told == {"141"}


def test_help_imports_no_verb() -> None:
    program = (
        "import sys; from fleet.cli.main import run; run(['--help']);"
        "sys.exit(any(m in sys.modules for m in ('paramiko', 'rich', 'yaml', 'fleet.cli.run.launch')))"
    )
    environ = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300, env=environ)
    assert (done.returncode, done.stderr) == (0, b"")
