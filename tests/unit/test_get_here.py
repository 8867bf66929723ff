"""`fleet get` on this machine: whose a file is that is here already, and where what comes may go. The node's half runs
here, too."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import ConnectError, FleetError, HostFailed, UsageError
from fleet.events import Event, Notice, Progress
from fleet.model import Host
from fleet.protocol.state import PROTOCOL
from tests.get_places import node_beside_here
from tests.in_process import LocalTransport, fleet_here, fleet_over
from tests.scripted import about

NOBODY = 65534


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return node_beside_here(tmp_path, monkeypatch)


class Head:
    """Types `fleet get`; answer: to a question, None: nobody can be asked."""

    def __init__(self, node: Path) -> None:
        self.node, self.answer = node, None
        self.asked: list[str] = []
        self.events: list[Event] = []

    def get(self, what: str, to: str = ".", **options: Any) -> Any:
        here = fleet_here(Host("n1", "n1", workdir=str(self.node)), emit=self.events.append, ask=self._ask)
        return here.get(what, to=Path(to), **options)

    def _ask(self, question: str) -> bool | None:
        self.asked.append(question)
        return self.answer

    def notices(self) -> str:
        return "\n".join(event.message for event in self.events if isinstance(event, Notice))


@pytest.fixture
def head(node: Path) -> Head:
    return Head(node)


def write(path: Path, text: str, mode: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if mode is not None:
        path.chmod(mode)
    return path


def test_what_is_here_is_asked_about_and_what_get_put_here_is_not(head: Head, node: Path) -> None:
    write(node / "ck/last.pt", "theirs")
    write(Path("last.pt"), "my own, and longer")
    with pytest.raises(UsageError, match=r"last\.pt \(18 B, changed .* ago\); nothing was replaced") as refused:
        head.get("ck/last.pt")
    assert "fleet get ck/last.pt --force" in str(refused.value.hint)
    assert Path("last.pt").read_text() == "my own, and longer" and len(head.asked) == 1
    head.answer = True
    assert head.get("ck/last.pt").ok and Path("last.pt").read_text() == "theirs"
    write(node / "ck/last.pt", "newer")
    assert head.get("ck/last.pt").ok and Path("last.pt").read_text() == "newer", "cron goes on"
    assert len(head.asked) == 2
    write(Path("last.pt"), "edit!")  # as long as theirs
    head.answer = False
    with pytest.raises(UsageError):
        head.get("ck/last.pt")
    assert Path("last.pt").read_text() == "edit!"
    assert head.get("ck/last.pt", force=True).ok and Path("last.pt").read_text() == "newer"
    assert os.listdir() == ["last.pt"], "nothing of the stage is left"


def test_equal_bytes_are_left_alone_and_stay_the_users_own(head: Head, node: Path) -> None:
    write(node / "a", "same")
    mine = write(Path("a"), "same")
    before = mine.stat()
    report, after = head.get("./a"), mine.stat()
    assert report.results[0].data["same"] == 1
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)  # its atime is of this reading
    write(node / "a", "other")
    with pytest.raises(UsageError):
        head.get("./a")
    assert mine.read_text() == "same"


@pytest.mark.parametrize("first", [("HEAD", "objects/o"), ("config", "refs/r"), ("HEAD", "refs/r")])
def test_two_gets_put_no_repository_together(head: Head, node: Path, first: tuple[str, str]) -> None:
    """git runs what its config names wherever HEAD, objects and refs lie beside it: `git status` in that folder."""
    whole = {"HEAD", "config", "objects/o", "refs/r"}
    for name in first:
        write(node / "x" / name, "[core] fsmonitor = evil")
    assert head.get("./x").ok
    shutil.rmtree(node / "x")
    for name in sorted(whole - {*first}):
        write(node / "x" / name, "[core] fsmonitor = evil")
    with pytest.raises(UsageError, match="would be a repository of git's"):
        head.get("./x")
    assert not {"HEAD", "config"} <= {*os.listdir("x")}
    assert head.get("./x", all=True).ok and {"HEAD", "config"} <= {*os.listdir("x")}


@pytest.mark.parametrize("last", ["HEAD", "objects", "refs"])
def test_gets_name_by_name_put_no_repository_together(head: Head, node: Path, last: str) -> None:
    """One without a config has hooks all the same, which git runs (`git gc`)."""
    for name in ("HEAD", "objects/o", "refs/r", "hooks/pre-auto-gc"):
        write(node / name, "ref: refs/heads/main", 0o755)
    names = ["HEAD", "objects", "refs", "hooks"]
    for name in names:
        if name != last:
            assert head.get(f"./{name}").ok
    with pytest.raises(UsageError, match="would be a repository of git's"):
        head.get(f"./{last}")
    assert last not in os.listdir() and head.get(f"./{last}", all=True).ok


def test_nothing_is_replaced_where_something_must_be_asked_about(head: Head, node: Path) -> None:
    for name in "abc":
        write(node / f"out/{name}", f"new {name}")
    write(Path("out/b"), "mine, not theirs")
    with pytest.raises(UsageError, match="out/b"):
        head.get("./out")
    assert {str(path) for path in Path("out").iterdir()} == {"out/b"}, "not the others either"
    write(Path("out/b"), "my b!")  # only its bytes tell
    with pytest.raises(UsageError, match="out/b"):
        head.get("./out")
    assert {str(path) for path in Path("out").iterdir()} == {"out/b"} and Path("out/b").read_text() == "my b!"


@pytest.mark.parametrize("force", [False, True])
def test_nothing_is_written_through_a_link(head: Head, node: Path, tmp_path: Path, force: bool) -> None:
    write(node / "x/a/b", "theirs")
    (tmp_path / "elsewhere").mkdir()
    Path("x").mkdir()
    Path("x/a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostFailed, match="x/a is a link here"):
        head.get("./x", force=force)
    Path("x/a").unlink()
    Path("x").rmdir()
    Path("x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostFailed, match="x is a link here"):
        head.get("./x", force=force)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_link_in_the_place_of_a_file_is_replaced_itself(head: Head, node: Path, tmp_path: Path) -> None:
    write(node / "f", "theirs")
    write(tmp_path / "elsewhere", "mine")
    Path("f").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError):
        head.get("./f")
    head.get("./f", force=True)
    assert not Path("f").is_symlink() and (tmp_path / "elsewhere").read_text() == "mine"


def test_links_come_last_and_lead_where_they_lead(head: Head, node: Path) -> None:
    write(node / "x/b", "new")
    (node / "x/a").symlink_to("b")
    (node / "x/dir").symlink_to("/nowhere")
    assert head.get("./x").ok and Path("x/a").read_text() == "new" and os.readlink("x/dir") == "/nowhere"
    (node / "x/a").unlink()
    (node / "x/a").symlink_to("B")
    assert head.get("./x").ok and os.readlink("x/a") == "B", "it was put here by a get"
    Path("x/a").unlink()
    Path("x/a").symlink_to("own")
    with pytest.raises(UsageError, match="x/a"):
        head.get("./x")


def test_what_changed_its_kind_on_the_node_is_replaced_where_get_put_all_of_it_here(head: Head, node: Path) -> None:
    write(node / "x/y/z", "deep")
    write(node / "x/w", "file")
    assert head.get("./x").ok
    (node / "x/y/z").unlink()
    (node / "x/y").rmdir()
    write(node / "x/y", "now a file")
    (node / "x/w").unlink()
    write(node / "x/w/v", "now a folder")
    assert head.get("./x").ok
    assert Path("x/y").read_text() == "now a file" and Path("x/w/v").read_text() == "now a folder"
    write(Path("x/w/own"), "mine")
    (node / "x/w/v").unlink()
    (node / "x/w").rmdir()
    write(node / "x/w", "a file again")
    with pytest.raises(HostFailed, match="x/w is a folder here"):
        head.get("./x", force=True)
    assert Path("x/w/own").read_text() == "mine"


def test_what_lies_staged_of_an_old_get_is_in_nobodys_way(head: Head, node: Path) -> None:
    """Whatever became of it on the node: a file that was a folder, and the other way round."""
    write(node / "x/y", "file")
    write(Path(".fleet-get/n1/tree/y/z"), "of a folder")
    write(Path(".fleet-get/n1/file/z"), "of a file")
    assert head.get("./x").ok and Path("x/y").read_text() == "file" and not Path(".fleet-get").exists()


def test_folders_have_the_nodes_mode_and_never_more(head: Head, node: Path) -> None:
    write(node / "x/closed/in/f", "text", 0o640)
    write(node / "x/wide/g", "text", 0o4755)
    for name, mode in {"closed": 0o700, "closed/in": 0o750, "wide": 0o3777}.items():
        (node / "x" / name).chmod(mode)
    (node / "x").chmod(0o2775)
    os.umask(umask := os.umask(0))
    assert head.get("./x").ok and umask == 0o022

    def modes(path: str) -> int:
        return stat.S_IMODE(os.stat(path).st_mode)

    names = ("x", "x/closed", "x/closed/in", "x/wide", "x/closed/in/f", "x/wide/g")
    assert [oct(modes(name)) for name in names] == ["0o755", "0o700", "0o750", "0o755", "0o640", "0o755"]


def test_repositories_stay_where_they_are_unless_all(head: Head, node: Path) -> None:
    write(node / "x/.git/config", "[core] fsmonitor = evil")
    write(node / "x/y", "text")
    assert head.get("./x").ok and os.listdir("x") == ["y"] and "left out on n1: .git" in head.notices()
    with pytest.raises(UsageError, match="names programs that run here"):
        head.get("x/.git")
    assert head.get("./x", all=True).ok and Path("x/.git/config").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_shared_folder_lends_nobody_its_stage(head: Head, node: Path, tmp_path: Path) -> None:
    """In one like /tmp anybody may have made .fleet-get, or the folder of a host, before."""
    write(node / "f", "theirs")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    write(tmp_path / "victim", "mine")
    stage = shared / ".fleet-get"
    for make in (
        lambda: (stage / "n1").mkdir(parents=True),
        lambda: stage.symlink_to(tmp_path),
        lambda: write(stage, "a file"),
    ):
        make()
        for path in (stage, stage / "n1"):
            if os.path.lexists(path) and not (path != stage and stage.is_symlink()):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(UsageError, match=r"\.fleet-get was made by another user"):
            head.get("./f", str(shared))
        assert not (shared / "f").exists()
        stage.unlink() if stage.is_symlink() or stage.is_file() else shutil.rmtree(stage)
    assert head.get("./f", str(shared)).ok and (shared / "f").read_text() == "theirs"
    assert sorted(os.listdir(shared)) == ["f"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda folder: os.chown(folder, NOBODY, NOBODY), "belongs to user id 65534"),
        (lambda folder: folder.chmod(0o777), "can be written by every user"),
    ],
)
def test_a_folder_in_which_others_can_swap_names_is_refused(
    spoil: Callable[[Path], object], said: str, head: Head, node: Path
) -> None:
    write(node / "x/f", "theirs")
    Path("x").mkdir()
    spoil(Path("x"))
    with pytest.raises(FleetError, match=f"x {said}"):
        head.get("./x")
    Path("to").mkdir()
    spoil(Path("to"))
    with pytest.raises(UsageError, match=f"to {said}"):
        head.get("./x", "to")
    assert not os.listdir("to")


def test_what_is_edited_between_the_look_and_the_last_step_stays(head: Head, node: Path) -> None:
    """While the question is put about another file, which came to lie there while the bytes came."""
    for name in "ab":
        write(node / f"x/{name}", "theirs")

    def emit(event: Event) -> None:
        if isinstance(event, Progress):
            write(Path("x/b"), "mine, not theirs")

    def ask(question: str) -> bool:
        write(Path("x/a"), "just now")
        return True

    report = fleet_here(Host("n1", "n1", workdir=str(node)), emit=emit, ask=ask).get("./x", to=Path())
    assert "changed meanwhile" in str(report.results[0].error) and Path("x/a").read_text() == "just now"


class OneIsDown(LocalTransport):
    def connect(self, host: Host, cancel: Any) -> Any:
        if host.name == "n2":
            raise ConnectError("refused", host=host.name, kind="refused")
        return super().connect(host, cancel)


@pytest.mark.parametrize("run", [None, "train-20261122-100000-ab12"])
def test_one_tree_only_where_all_hosts_answered(run: str | None, node: Path) -> None:
    write(node / "work/f", "theirs")
    write(Path("work/f"), "mine")
    if run:  # of which the host that is down may know
        spec = {
            "run": run,
            "protocol": PROTOCOL,
            "node": os.uname().nodename,
            "node_rank": 0,
            "ranks": [0],
            "cwd": str(node / "work"),
        }
        spec["about"] = about(nnodes=2, hosts={"n1": [0, 1], "n2": [1, 1]})
        folder = Path(os.environ["HOME"], ".fleet/runs", run)
        write(folder / "spec.json", json.dumps(spec))
        write(folder / "status.json", '{"state": "exited", "time": 1.0}')
        os.utime(folder / "spec.json", (1.0, 1.0))
    hosts = [Host(name, name, workdir=str(node)) for name in ("n1", "n2")]
    report = fleet_over(OneIsDown(), *hosts).get(run or "./work", to=Path())
    name = run or "work"
    assert report.exit_code == 122 and report.results[0].data["to"] == f"n1/{name}", report.results
    assert Path("work/f").read_text() == "mine" and Path(f"n1/{name}/f").read_text() == "theirs"


def test_after_an_interrupt_nothing_gets_in_place(head: Head, node: Path) -> None:
    write(node / "f", "theirs")
    hosts = fleet_here(Host("n1", "n1", workdir=str(node)))
    plan = hosts.plan.get("./f", to=Path())

    def interrupted(runtime: Any) -> Any:
        return plan.work(replace(runtime, emit=lambda event: isinstance(event, Progress) and runtime.cancel.set()))

    report = hosts.run(interrupted)
    assert report.exit_code == 130 and not Path("f").exists() and Path(".fleet-get/n1").is_dir()
    assert head.get("./f").ok and Path("f").exists()


def test_what_is_forgotten_costs_a_question_and_no_more(head: Head, node: Path, tmp_path: Path) -> None:
    write(node / "f", "theirs")
    assert head.get("./f").ok
    shutil.rmtree(tmp_path / "home/.fleet/brought")
    assert head.get("./f").ok, "equal bytes"
    write(node / "f", "newer")
    with pytest.raises(UsageError, match="nothing was replaced"):
        head.get("./f")


def test_what_lies_staged_of_another_version_leaves_nothing_in_holes(head: Head, node: Path, tmp_path: Path) -> None:
    """Zero bytes are not sent: what an earlier get of that file left must not show through."""
    (node / "x").mkdir()
    (node / "x/w").write_bytes(b"a" * (1 << 20) + bytes(2 << 20) + b"b" * 100)
    (tmp_path / "here/to").mkdir()
    assert head.get("./x").ok
    assert Path("x/w").read_bytes() == (node / "x/w").read_bytes()
    assert Path("x/w").stat().st_blocks * 512 < 2 << 20, "holes stay holes"
