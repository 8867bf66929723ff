"""What people see, at 80, 120 and 200 columns and in a pipe: a file a case in tests/golden/screens, made from fixed
reports and events by the verbs' own renderers. FLEET_GOLDEN=write writes what is shown now; look at it.

A live line stands below "~ live" and the moment it is seen at.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from fleet.cli.context import finish
from fleet.cli.files import data, sync
from fleet.cli.line.values import Scrolling
from fleet.cli.main import run
from fleet.cli.run import follow
from fleet.cli.run.launch_view import LaunchView
from fleet.cli.screen import terminal
from fleet.cli.screen.board import KEYS
from fleet.cli.screen.folded import write_folded
from fleet.cli.screen.progress import ProgressLine
from fleet.cli.verbs import exec as exec_verb
from fleet.cli.verbs import kill_port, setup_ssh
from fleet.errors import ConnectError, DeadlineError
from fleet.events import Finished, Notice, Output, Progress, Round, Started
from fleet.model import Report, Result
from fleet.ops.kill_port import Listener, foreign
from fleet.ops.setup_ssh.passwords import NewKey
from tests.events import happened
from tests.failures import FAILURES

FOLDER = Path(__file__).with_name("screens")
RUN = "train-20261121-200244-065c"
GPUS = [f"gpu{n:02}" for n in range(1, 65)]


class Stream(io.TextIOWrapper):
    """stdout and stderr in one, a terminal of `columns` or a pipe."""

    def __init__(self, columns: int | None) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True, newline="\n")
        self.columns = columns

    def isatty(self) -> bool:
        return self.columns is not None

    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@contextmanager
def seen(monkeypatch: pytest.MonkeyPatch, columns: int | None, **env: str) -> Iterator[Stream]:
    with monkeypatch.context() as patch:
        out = Stream(columns)
        for name, value in {
            "NO_COLOR": None,
            "CI": None,
            "LINES": "50",
            "TERM": "xterm",
            "COLUMNS": str(columns or 80),
            **env,
        }.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", out)
        yield out


def moment(line: ProgressLine, seconds: float) -> None:
    """The live line, as it stands so long after the beginning of its round."""
    for text in line.lines(line._begun + seconds):
        if terminal.live(sys.stderr):
            click.echo(f"~ live, after {seconds:g} s\n{terminal.cut(text, (terminal.width(sys.stderr) or 0) - 1)}")


def exec_folds_and_differs() -> None:
    usual = "\n".join([*(f"package-{n} 1.{n}" for n in range(1, 12)), "torch 2.13.0", ""]).encode()
    odd = usual.replace(b"torch 2.13.0", b"torch 2.12.1")
    dead = ConnectError("port 22 refused the connection", hint="is sshd running there, and on this port?")
    slow = DeadlineError("still running after 20 s; ended there", hint="give it longer with --timeout")
    results = [Result(name, True, 0, usual) for name in GPUS[:56]]
    results += [Result(name, True, 0, odd) for name in GPUS[56:59]]
    results += [Result(GPUS[59], True, 0, b"No package index here\n"), Result(GPUS[60], False, error=slow)]
    results += [Result(name, False, error=dead) for name in GPUS[61:]]
    finish(Report("exec", tuple(results), 122), lambda report: write_folded(report.results, "stdout"))


def progress_names_who_is_late() -> None:
    line = exec_verb.PrefixedLines()
    line.feed(Round("", tuple(GPUS)))
    for name in GPUS:
        line.feed(Started(name, "connecting"))
    moment(line, 0.5)
    for name in GPUS:
        line.feed(Started(name, ""))
    odd = [name for name in GPUS if int(name[3:]) % 2]
    for name in GPUS:
        if name not in odd:
            line.feed(Finished(Result(name, True)))
    moment(line, 2.0)
    for name in odd[2:]:
        line.feed(Finished(Result(name, name != odd[2])))
    moment(line, 4.2)
    sent = ProgressLine("sending")
    sent.feed(Round("comparing files", tuple(GPUS[:4])))
    for name in GPUS[:4]:
        sent.feed(Started(name, "comparing files"))
    moment(sent, 1.5)
    for name in GPUS[:4]:
        sent.feed(Progress(name, "sending", 3 << 20, 16 << 20))
    moment(sent, 3.0)
    way = "checking that every host reaches every other"
    sent.feed(Round(way, tuple(GPUS[:12])))
    sent.feed(Started("gpu12", way))
    sent.feed(Progress(None, way, 120, 144, "count"))
    moment(sent, 6.0)


def setup_ssh_asks_and_tells() -> None:
    @dataclass
    class Key:
        type: str
        fingerprint: str

    print_ = [f"SHA256:{letter * 43}" for letter in "abcd"]
    keys = [
        NewKey(
            f"rented{n}.example.org",
            f"root@203.0.113.{n}:33022",
            Key("ssh-ed25519", print_[n]),  # type: ignore[arg-type]
            (print_[0],) if n == 2 else (),
        )
        for n in (1, 2, 3)
    ]
    click.echo("\n".join(setup_ssh.table(keys, terminal.width(sys.stdout))))
    changed = ["made .ssh", "made id_ed25519", "authorized_keys", "known_hosts", "config"]
    results = tuple(
        Result(
            name,
            True,
            data={
                "changed": changed,
                "host_key": {"how": "trusted on first use", "type": "ssh-ed25519", "fingerprint": print_[1]},
            },
        )
        for name in GPUS[:4]
    )
    setup_ssh.show(
        Report(
            "setup-ssh",
            results,
            0,
            {
                "changed": True,
                "head": {"changed": ["known_hosts", "made key /root/.ssh/id_ed25519", "config"]},
                "pairs": {"verified": 16, "from_head": 4, "failed": []},
            },
        )
    )


def sync_and_wheels() -> None:
    def result(name: str, **given: Any) -> Result:
        return Result(
            name,
            True,
            data={"to": "/root/work", "entries": 812, "changed": 7, "sent": 4, "bytes": 8100, "deleted": 0, **given},
        )

    results = [
        *map(result, GPUS[:4]),
        result(GPUS[4], deleted=2, kept=["train/configs/experiment-2026-11-21.yaml"]),
        result(GPUS[5], changed=0, sent=0),
    ]
    whole = {"entries": 812, "source": "/home/me/proj", "skipped": ["run/agent.sock"]}
    finish(Report("sync", tuple(results), 0, whole), sync.show)
    there = dict.fromkeys(("einops", "flash-attn", "numpy", "triton", "transformers", "accelerate", "x"), "installed")
    finish(
        Report(
            "sync",
            tuple(
                Result(n, True, data={"wheels": there, "python": "/opt/conda/envs/train/bin/python"}) for n in GPUS[:4]
            ),
            0,
            {"wheels": [{"name": n, "version": "1.2.3", "file": "", "sha256": ""} for n in there]},
        ),
        data.show_wheels,
    )
    line = data.DataLine()
    line.feed(Round("", tuple(GPUS[:4])))
    for name, state, done in zip(GPUS, ("receiving", "receiving", "away", "receiving"), (50, 48, 9, 31), strict=False):
        line.feed(Progress(name, state, done << 30, 128 << 30))
    line.details(1.0)
    moment(line, 30.0)


def kill_port_shows() -> None:
    command = "/opt/conda/envs/train/bin/python -u -m torch.distributed.run --nnodes=4 --nproc-per-node=8 train.py"
    facts = {
        "port": 29500,
        "address": "0.0.0.0",
        "pid": 11800,
        "user": "root",
        "uid": 0,
        "own": True,
        "age": 7260.0,
        "command": command,
        "run_id": RUN,
        "refused": None,
        "protocol": "tcp",
        "also": [],
    }
    kill_port.show(tuple(Listener(name, {**facts, "pid": 11800 + n}) for n, name in enumerate(GPUS[:3])))
    others = {
        **facts,
        "address": "::",
        "user": "anna",
        "run_id": None,
        "command": "計算 サーバー --port 29500",
        "also": ["8080", "8443"],
    }
    kill_port.show((Listener("gpu01", facts), Listener("gpu02", others, foreign("anna"))))
    kill_port.show(())


def hosts_tables() -> None:
    for case, words in ((HOSTS, []), (HOSTS, ["-w", "gpu[01-02]"]), (ODD_HOSTS, [])):
        Path("fleet.yaml").write_text(case)
        run([*words, "hosts"])


HOSTS = """
defaults: {user: root, slots: 8, python: /opt/conda/envs/train/bin/python, workdir: ~/work}
hosts: {"gpu[01-03]": {}}
"""
ODD_HOSTS = """
defaults: {user: root, slots: 8, workdir: ~/work}
hosts:
  gpu01: {python: /opt/conda/envs/train/bin/python}
  rented-machine-1.provider.example: {address: 203.0.113.10, port: 33, data_address: 192.168.0.7, slots: 4,
                                      python: /home/somebody/miniconda3/envs/pytorch-2.13/bin/python}
  n3: {address: 198.51.100.20}
groups: {a100: gpu01}
"""


def launch_from_its_first_words() -> None:
    names = GPUS[:4]
    view = LaunchView(names)

    def happens(*events: Any, seconds: float | None = None) -> None:
        for event in events:
            view._show(event)
        if seconds is not None:
            moment(view._starting, seconds)

    happens(Round("comparing files", tuple(names)), *(Started(n, "comparing files") for n in names), seconds=0.3)
    happens(*(Progress(n, "sending", 1 << 20, 4 << 20) for n in names), seconds=2.0)
    happens(Round("", ()), step("sync: 4 hosts, 3.1 s"))
    happens(
        Round("preflight", tuple(names)),
        *(Started(n, "preflight") for n in names),
        *(Finished(Result(n, True)) for n in names[:3]),
        seconds=4.0,
    )
    happens(
        Round("", ()),
        step("preflight: 4 hosts, 5.0 s"),
        step("start: 4 hosts, 0.6 s"),
        step(f"run {RUN}: 32 ranks on 4 nodes, logs in runs/{RUN}", "running"),
        seconds=7.0,
    )
    happens(
        Output("gpu01", "stdout", b"epoch 1\nloss 0.25 \x1b[31m\n", 0),
        Output("gpu02", "stderr", b"5%\r10%\r", 8),
        Notice("warning", "gpu03: silent for 5 s; trying again", "gpu03"),
        seconds=9.0,
    )
    why = "ValueError: learning rate is negative, and this is a message that goes on for longer than a line of eighty"
    follow.show_summary(
        Report(
            "launch",
            (Result("gpu03", False, 1, data={"left": []}),),
            1,
            {
                "run": "train-20261121-200244-065c",
                "logs": "runs/train-20261121-200244-065c",
                "seconds": 61.23,
                "incomplete_logs": [],
                "tracebacks": [
                    {
                        "ranks": [*range(16, 24)],
                        "hosts": ["gpu03"],
                        "exception": why,
                        "follows": False,
                        "log": "rank17.err",
                    }
                ],
                "next": ["fleet logs train-20261121-200244-065c --rank 17 --err --tail 100"],
                "first_failure": {
                    "host": "gpu03",
                    "rank": 17,
                    "message": "rank 17 on gpu03 (node rank 2) failed: exit code 1",
                    "tail": None,
                    "traceback": "Traceback (most recent call last):\n"
                    f'  File "/root/work/t.py", line 3, in <module>\n{why}',
                    "why": why,
                    "kernel": None,
                    "hint": "see what is given as --lr",
                    "log": "runs/train-20261121-200244-065c/gpu03/rank17.err",
                },
            },
        ),
        view,
    )


def launch_says_who_and_why() -> None:
    for failure in FAILURES:
        click.echo(f"~ {failure.__name__}")
        shutil.rmtree("runs", ignore_errors=True)
        follow.show_summary(failure(), LaunchView(GPUS[:4]))


def launch_while_it_runs() -> None:
    names = GPUS[:40]
    view = LaunchView(names, scrolls=Scrolling(first=True))
    began = happened("running", world_size=320, first_ranks={name: 8 * n for n, name in enumerate(names)})

    def happens(*events: Any, at: float) -> None:
        for event in events:
            view._show(event)
        view._unfold(everything=True)
        if terminal.live(sys.stderr):
            for text in view._board.lines(at, terminal.width(sys.stderr) or 0, 18, KEYS):
                click.echo(f"~ live, after {at:g} s\n{text}")

    def says(host: str, rank: int, text: str, at: float) -> Output:
        return Output(host, "stderr", text.encode(), rank, time=at)

    bar = "epoch 3: 45%|#############                | 450/1000 [01:12<01:28, 6.2it/s, loss=0.1234]"
    happens(Notice("info", f"run {RUN}: 320 ranks on 40 nodes", happened=(began,), time=0.1), at=1.0)
    happens(
        says("gpu01", 0, "\r45%|####    |", 73.0),
        *(says(n, 8 * i, f"\r{bar}", 72.0) for i, n in enumerate(names[:32]) if i),
        at=75.0,
    )
    happens(says("gpu33", 257, "loading shard 7\n", 9.0), says("gpu01", 0, "\nepoch 3 is over\n", 80.0), at=3672.0)
    ends = happened("rank", rank=9), happened("stop", grace=0.0)
    happens(*(Notice("info", "", happened=(each,), time=0.0) for each in ends), at=3673.0)


def step(text: str, event: str = "step") -> Notice:
    return Notice("info", text, happened=(happened(event),))


CASES: list[Callable[[], None]] = [
    exec_folds_and_differs,
    progress_names_who_is_late,
    setup_ssh_asks_and_tells,
    sync_and_wheels,
    kill_port_shows,
    hosts_tables,
    launch_from_its_first_words,
    launch_while_it_runs,
    launch_says_who_and_why,
]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)

    def show(case: Callable[[], None], columns: int | None, **env: str) -> str:
        with seen(monkeypatch, columns, **env) as out:
            case()
        return out.text()

    return show


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_screens(case: Callable[[], None], shown: Callable[..., str]) -> None:
    screens = {f"{columns} columns": click.unstyle(shown(case, columns)) for columns in (80, 120, 200)}
    screens["in a pipe"] = shown(case, None).replace("\x1b", "<ESC>")
    alike: dict[str, list[str]] = {}
    for name, text in screens.items():
        alike.setdefault(text, []).append(name)
    now = "\n".join(f"======== {', '.join(names)}\n{text}" for text, names in alike.items())
    path = FOLDER / f"{case.__name__}.txt"
    if os.environ.get("FLEET_GOLDEN") == "write":
        path.write_text(now)
    assert now == path.read_text()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_narrow_dumb_and_without_colours(case: Callable[[], None], shown: Callable[..., str]) -> None:
    colored = shown(case, 80)
    assert shown(case, 80, NO_COLOR="1") == click.unstyle(colored)
    still = re.sub(r"~ live.*\n.*\n", "", colored)
    assert shown(case, 80, CI="true") == still
    assert shown(case, 80, TERM="dumb") == click.unstyle(still)
    assert shown(case, 80, NO_COLOR="") == colored
    wide = [line for line in click.unstyle(colored).splitlines() if terminal.cells(line) > 80]
    assert wide == [], "nothing here is one word that is wider than the screen"
