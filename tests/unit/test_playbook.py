"""Playbooks: YAML -> the argv of each step, and every mistake named with its line before anything runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import FleetError, InventoryError, UsageError
from fleet.playbook.read import load, parse
from fleet.playbook.steps import Param, starting_at
from tests.in_process import typed as run


class FakeVerbs:
    """Two verbs. A step of `echo` with the word "refused" is a usage error."""

    def names(self) -> list[str]:
        return ["echo", "launch"]

    def params(self, verb: str) -> Mapping[str, Param]:
        if verb == "echo":
            return {"words": Param("argument", multiple=True), "loud": Param("flag", "--loud", "--no-loud")}
        return {
            "script": Param("argument", required=True),
            "args": Param("argument", multiple=True),
            "env": Param("value", "--env", multiple=True),
            "name": Param("value", "--name"),
            "detach": Param("flag", "--detach"),
        }

    def validate(self, argv: Sequence[str]) -> None:
        if "refused" in argv:
            raise UsageError("the verb says no", hint="ask nicely")


def test_a_playbook_knows_its_folder(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("- echo: ['${playbook_dir}/..']\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link.yaml").symlink_to(tmp_path / "p.yaml")
    (step,) = load(tmp_path / "elsewhere/link.yaml", FakeVerbs())
    assert step.argv == ("echo", f"{tmp_path}/..")
    (step,) = load(tmp_path / "p.yaml", FakeVerbs(), {"playbook_dir": "/else"})
    assert step.argv == ("echo", "/else/..")


def argvs(text: str, **overrides: str) -> list[list[str]]:
    return [list(step.argv) for step in parse(text, "p.yaml", FakeVerbs(), overrides)]


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("- echo:", ["echo"]),
        ("- echo: []", ["echo"]),
        ("- echo: [a, b c, --loud]", ["echo", "--", "a", "b c", "--loud"]),
        ("- echo: one", ["echo", "one"]),
        ("- echo: [--]", ["echo", "--", "--"]),
        ("- echo: {loud: true, words: [x]}", ["echo", "--loud", "x"]),
        ("- echo: {loud: false}", ["echo", "--no-loud"]),
        ("- launch: {detach: false, script: s.py}", ["launch", "s.py"]),
        # text stays as it was written: no 0.1, no octal, no True, no date
        (
            "- echo: [0.10, 010, 1e3, yes, 2024-01-01, 'null']",
            ["echo", "0.10", "010", "1e3", "yes", "2024-01-01", "null"],
        ),
        # arguments in the verb's order, whatever order the playbook has them in
        ("- launch: {args: [--lr, 1], script: s.py, name: n}", ["launch", "--name", "n", "--", "s.py", "--lr", "1"]),
        ("- launch: {script: s.py, name: -n}", ["launch", "--name=-n", "s.py"]),
        ("- launch: {script: s.py, env: {A: 1, B: ''}}", ["launch", "--env", "A=1", "--env", "B=", "s.py"]),
        ("- launch: {script: s.py, env: [A=1, B]}", ["launch", "--env", "A=1", "--env", "B", "s.py"]),
        ("- {echo: [a], on: 'gpu[1-2]'}", ["echo", "--hosts", "gpu[1-2]", "a"]),
        ("- {echo: [a], on: -x}", ["echo", "--hosts=-x", "a"]),
    ],
)
def test_a_step_is_an_argv(text: str, argv: list[str]) -> None:
    assert argvs(text) == [argv]


def test_variables_come_from_the_playbook_and_from_var_never_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/leak")
    text = "- vars: {a: x, b: '${a}y'}\n- echo: ['${b}', '$${HOME}', $HOME, '$$', '${a}${a}']\n"
    assert argvs(text) == [["echo", "xy", "${HOME}", "$HOME", "$$", "xx"]]
    assert argvs(text, a="two words; $(id)")[0][1] == "two words; $(id)y"
    with pytest.raises(InventoryError) as caught:
        argvs("- echo: ['${HOME}']")
    assert "unknown variable 'HOME'" in str(caught.value)
    assert "/leak" not in str(caught.value)


def test_a_value_of_a_variable_is_not_looked_at_again() -> None:
    assert argvs("- vars: {a: , b: z}\n- echo: ['${a}']\n", a="${b}") == [["echo", "${b}"]]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "p.yaml:1: a playbook is a list", "exec"),
        ("echo: [a]", "p.yaml:1: a playbook is a list", "exec"),
        ("- echo: [a\n- echo", "p.yaml:2: not valid YAML", None),
        ("- echo: [a]\n- ecoh: [b]", "p.yaml:2: unknown verb or key 'ecoh'", "did you mean 'echo'?"),
        ("- echo: [a]\n  nmae: x", "p.yaml:2: unknown verb or key 'nmae'", "did you mean 'name'?"),
        ("- play: [x]", "p.yaml:1: unknown verb or key 'play'", None),
        ("- name: x", "p.yaml:1: a step has no verb", None),
        ("- echo: [a]\n  launch: [s.py]", "p.yaml:1: a step has 2 verbs (echo, launch)", None),
        ("- echo\n", "p.yaml:1: a step must be a mapping", None),
        ("-\n- echo: []", "p.yaml:1: a step must be a mapping", None),
        ("- launch:\n    script: s.py\n    detahc: true", "p.yaml:3: launch: unknown option 'detahc'", "'detach'"),
        ("- launch:\n    script: s.py\n    detach: 1", "p.yaml:3: 'detach' must be true or false", None),
        ("- launch: {args: [a]}", "p.yaml:1: launch: needs 'script'", None),
        ("- launch: {script: [a, b]}", "p.yaml:1: 'script' must be plain text, not a list", None),
        ("- launch: {script: s, name: }", "p.yaml:1: 'name' has no value", '""'),
        ("- launch: {script: s, name: {a: b}}", "p.yaml:1: 'name' must be plain text, not a map", None),
        ("- echo: [[a]]", "p.yaml:1: 'echo' must be plain text, not a list", None),
        ('- echo: ["a\\0b"]', "p.yaml:1: 'echo' holds a NUL", None),
        ("- echo: [a]\n  echo: [b]", "p.yaml:2: key 'echo' is here twice", None),
        ("- {echo: [a], ignore-errors: maybe}", "p.yaml:1: 'ignore-errors' must be true or false", None),
        ("- vars: {a: 1}\n  echo: [a]", "p.yaml:1: 'vars' needs a list item of its own", None),
        ("- vars:\n    password_file:", "p.yaml:2: variable 'password_file' has no value", "--var password_file="),
        ("- vars: {alpha: 1}\n- echo: ['${alhpa}']", "p.yaml:2: unknown variable 'alhpa'", "'alpha'"),
        ("[]", "p.yaml:1: the playbook has no steps", None),
        ("- vars: {a: 1}", "p.yaml:1: the playbook has no steps", None),
        ("- vars: {'a b': 1}", "p.yaml:1: 'a b' is not a variable's name", None),
        ("- echo: []\n\n- echo: [refused]", "p.yaml:3: echo: the verb says no", "ask nicely"),
        ("- &x [*x]", "p.yaml:1: is nested deeper than", None),
        ("- echo: " + "[" * 5000, "p.yaml", None),
    ],
)
def test_mistakes_name_their_line(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(InventoryError) as caught:
        argvs(text)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 121
    if hint:
        assert hint in (caught.value.hint or "")


def test_an_override_that_nothing_declares_is_an_error() -> None:
    with pytest.raises(InventoryError, match="--var prot: the playbook has no such variable"):
        argvs("- vars: {port: 1}\n- echo: []", prot="2")


@given(st.text(alphabet=st.sampled_from("-:[]{}&*!|>'\"${}%@`#,? \n\tabecho"), max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_gives_steps_or_a_fleet_error(text: str) -> None:
    try:
        steps = parse(text, "p.yaml", FakeVerbs())
    except FleetError as error:
        assert error.exit_code == 121
        assert error.where
        return
    assert all(step.argv[0] in ("echo", "launch") for step in steps)


# -- against the real command line ---------------------------------------------------------------------
def test_the_real_verbs_are_validated_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "p.yaml"
    book.write_text(f"- exec: [touch, {tmp_path}/ran]\n- exec: {{timeout: soon, argv: [a]}}\n")
    assert run(["--transport", "local", "play", str(book)]) == 121
    error = capsys.readouterr().err
    assert error.startswith(f"error: {book}:2: exec: --timeout 'soon': must be a number, more than 0")
    assert not (tmp_path / "ran").exists()


def test_play_runs_steps_in_process_with_the_common_options(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    inventory = tmp_path / "fleet.yaml"
    inventory.write_text("hosts: {me: {}, you: {}}\n")
    book = tmp_path / "p.yaml"
    book.write_text(
        "- vars: {word: }\n"
        "- {name: say it, exec: [echo, '${word}', $(id)], on: me}\n"
        "- {exec: {shell: exit 4}, ignore-errors: true}\n"
        "- exec: {shell: exit 3}\n"
        "- exec: [touch, never]\n"
    )
    common = ["-i", str(inventory), "--transport", "local"]
    assert run([*common, "play", str(book), "--var", "word=it's"]) == 3
    out, err = capfd.readouterr()
    assert out == "--- me ---\nit's $(id)\n"
    assert "# say it\n$ fleet -i " in err
    assert f"{book}:3: this step ended in 4; ignored, as the playbook says\n" in err
    assert f"{book}:4: this step ended in 3; 1 after it was not run\n" in err
    assert "never" not in err

    assert run([*common, "--json", "play", str(book), "--var", "word=w"]) == 3
    document = json.loads(capfd.readouterr().out)
    assert (document["verb"], document["ok"], document["exit_code"]) == ("play", False, 3)
    assert [step["exit_code"] for step in document["steps"]] == [0, 4, 3]
    assert document["steps"][0]["documents"][0]["hosts"]["me"]["stdout"] == "w $(id)\n"

    assert run([*common, "--dry-run", "play", str(book), "--var", "word=w"]) == 0
    out = capfd.readouterr().out
    assert out == (
        "me: would run echo w '$(id)'\nme,you: would run, in its shell: exit 4\n"
        "me,you: would run, in its shell: exit 3\nme,you: would run touch never\n"
    )


def test_steps_have_the_hosts_of_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "4")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "zz[01-02]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x2)")
    (tmp_path / "p.yaml").write_text("- exec: [hostname]\n- {exec: [id], on: zz01}\n")
    assert run(["--on", "slurm", "--dry-run", "play", "p.yaml"]) == 0
    out, err = capfd.readouterr()
    assert out == "zz[01-02]: would run hostname\nzz01: would run id\n"
    assert "$ fleet --on=slurm --dry-run exec hostname" in err and "--transport" not in err, err


def test_an_interrupt_is_never_ignored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text("hosts: {me: {}}\n")
    book = tmp_path / "p.yaml"
    book.write_text("- {exec: {shell: exit 130}, ignore-errors: true}\n- exec: [echo, never]\n")
    assert run(["-i", str(tmp_path / "fleet.yaml"), "--transport", "local", "play", str(book)]) == 130
    out, err = capfd.readouterr()
    assert out == "" and f"{book}:1: this step ended in 130; 1 after it was not run\n" in err


def test_values_of_variables_are_not_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text("hosts: {me: {}}\n")
    book = tmp_path / "p.yaml"
    book.write_text("- launch: {env: {TOKEN: hunter2, OTHER: '-hunter2'}, script: x.py, args: [--env, A=1]}\n")
    common = ["-i", str(tmp_path / "fleet.yaml"), "--transport", "local", "--dry-run"]
    for words in ([], ["--json"]):
        assert run([*common, *words, "play", str(book)]) == 0
        out, err = capfd.readouterr()
        assert "hunter2" not in out + err and "TOKEN=***" in err
        assert "A=1" in err


def test_secrets_among_a_scripts_arguments_are_not_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text("hosts: {me: {}}\n")
    book = tmp_path / "p.yaml"
    book.write_text(
        "- vars: {mine: none}\n"
        "- launch: {script: x.py, args: [PASSWORD=hunter2]}\n"
        "- launch: {nnodes: 7, script: x.py, args: [--api-key, '${mine}', --token=hunter2, --lr, 0.1]}\n"
    )
    line = ["-i", str(tmp_path / "fleet.yaml"), "--transport", "local", "play", str(book), "--var", "mine=hunter2"]
    assert run(["--dry-run", "--json", *line]) == 2
    out, err = capfd.readouterr()
    assert "x.py 'PASSWORD=***'" in err and "hunter2" not in err, err
    argv = json.loads(out)["steps"][1]["argv"]
    assert argv[-6:] == ["x.py", "--api-key", "***", "--token=***", "--lr", "0.1"], argv
    assert run([*line, "--from", "2"]) == 2
    err = capfd.readouterr().err
    assert "--var 'mine=***' --from 2" in err and "hunter2" not in err, err


def test_hosts_given_for_the_whole_playbook_never_widen_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "p.yaml"
    book.write_text("- {exec: [true], on: b}\n")
    assert run(["-w", "a", "play", str(book)]) == 2
    assert f"{book}:1" in capsys.readouterr().err


def test_a_host_that_is_not_in_the_inventory_is_found_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text("hosts: {gpu1: {}}\n")
    book = tmp_path / "p.yaml"
    book.write_text(f"- exec: [touch, {tmp_path}/ran]\n- on: gpu2\n  exec: [hostname]\n")
    assert run(["-i", str(tmp_path / "fleet.yaml"), "--transport", "local", "play", str(book)]) == 121
    error = capsys.readouterr().err
    assert error.startswith(f"error: {book}:3: exec: ") and "gpu2" in error
    assert "on: 'gpu2': no host" in error and "-w" not in error
    assert not (tmp_path / "ran").exists()


def test_missing_and_unreadable_playbooks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"- exec: [\xff\xfe]\n")
    for name in ("none.yaml", "binary.yaml", "."):
        assert run(["play", str(tmp_path / name)]) == 121
        assert capsys.readouterr().err.startswith("error: ")


BOOK = """\
- vars: {word: none, secret: none}
- {name: say it, exec: [echo, '${word}']}
- {exec: {shell: "test -e mended"}}
- name: a run
  launch: {env: {TOKEN: "${secret}"}, engine: command, no-preflight: true, script: /bin/true}
- {name: twice, exec: [echo, last]}
- {name: twice, exec: [echo, very last]}
"""


def test_a_failed_step_is_named_with_the_command_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(BOOK)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    line = ["--transport", "local", "--fanout", "3", "play", "p.yaml", "--var"]
    (tmp_path / "fleet.yaml").write_text("hosts: {me: {}}\n")
    assert run([*line, "word=it's", "--var", "secret=hunter2"]) == 1
    said = capfd.readouterr()
    hint = said.err.splitlines()[-1]
    assert hint.startswith("  hint: when it is mended, from here on: fleet --transport=local --fanout=3 play p.yaml ")
    assert "hunter2" not in said.err and "--var 'secret=***' --from 2" in hint
    resumed = shlex.split(hint.partition("from here on: fleet ")[2])
    assert run([*resumed, "--from", "4"]) == 0
    assert capfd.readouterr().out == "--- me ---\nlast\n--- me ---\nvery last\n"


@pytest.mark.parametrize(
    ("said", "numbers", "error"),
    [
        ("1", [1, 2, 3], None),
        ("3", [3], None),
        ("b", [2, 3], None),
        ("4", [], "--from 4: there is no such step"),
        ("0", [], "--from 0: there is no such step"),
        ("", [], "--from : there is no such step"),
        ("a", [], "--from a: 2 steps have this name"),
    ],
)
def test_a_step_is_said_by_its_number_or_its_name(said: str, numbers: list[int], error: str | None) -> None:
    text = "- {name: a, echo: [x]}\n- vars: {v: 1}\n- {name: b, echo: [x]}\n- {name: a, echo: [x]}\n"
    steps = parse(text, "p.yaml", FakeVerbs())
    assert [step.number for step in steps] == [1, 2, 3]
    if error is None:
        assert [step.number for step in starting_at(steps, said)] == numbers
        return
    with pytest.raises(UsageError, match=error) as caught:
        starting_at(steps, said)
    assert caught.value.hint


def test_a_step_may_be_a_python_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text("hosts: [a, b]\n")
    (tmp_path / "t.py").write_text(
        "from fabric import task\n@task\ndef say(c, word, twice=False):\n    c.run(f'echo {word} {twice}')\n"
    )
    (tmp_path / "p.yaml").write_text(
        "- {task: [t.py:say, --word, it, --twice], on: a}\n- task: {file: t.py, args: [say, more], no-fold: true}\n"
    )
    assert run(["--transport", "local", "play", "p.yaml"]) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[:2] == ["--- a ---", "it True"] and sorted(out[2:]) == ["a: more False", "b: more False"]
    assert run(["--transport", "local", "--dry-run", "play", "p.yaml", "--from", "2"]) == 0
    assert capfd.readouterr().out == "would run say(word='more', twice=False) on a,b\n"
    (tmp_path / "bad.py").write_text("\nno_such_name\n")
    for step, message in {
        "[t.py:sya]": "task: t.py: No idea what 'sya' is!",
        "bad.py:x": f"task: {tmp_path}/bad.py:2: cannot be read: NameError",
        "[t.py:say]": "task: t.py: 'say' did not receive required positional arguments: 'word'",
        "none.py:x": "task: there is no none.py",
        "p.yaml": "task: a task is in a Python file",
    }.items():
        (tmp_path / "q.yaml").write_text(f"- exec: [touch, ran]\n- task: {step}\n")
        assert run(["--transport", "local", "play", "q.yaml"]) == 121
        assert f"error: q.yaml:2: {message}" in capfd.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_a_step_that_asks_for_help_puts_nothing_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text("- lab: {}\n")
    assert run(["--json", "play", "p.yaml"]) == 121
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "p.yaml:1: lab: asks for help, it runs nothing"
