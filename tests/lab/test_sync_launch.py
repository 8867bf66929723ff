"""`fleet sync` and `fleet launch` at the same time, and one after the other was killed: no run from a mixture."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.test_launch import until
from tests.lab.virtual_lab import VirtualLab

FILES = 300
# in a node's python3: ends a program of fleet, as SIGKILL does, that has given half of the files their places
ENDED_HALF_WAY = """
import os, re, sys

def look(event, told, places=[]):
    if event == "os.rename" and re.match(b"f[0-9]{4}$", os.path.basename(os.fsencode(told[1]))):
        places.append(told[1])
        if len(places) > %d:
            os.kill(os.getpid(), 9)

sys.addaudithook(look)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "job").write_text("#!/bin/sh\ncat part; sleep ${1:-0}; cat part\n")
    (folder / "job").chmod(0o755)
    (folder / "part").write_text("old")
    return folder


# a head that never comes to what it is to send; it notes each host
STUCK = """
import sys, time
from fleet.__main__ import main
from fleet.delivery.parcels import Parcels

def of(self, *lacking):
    with open(noted, "a") as file:
        file.write("x")
    time.sleep(1000)

Parcels.of, noted = of, sys.argv.pop(1)
main()
"""


def launch(lab: VirtualLab, tmp_path: Path, workdir: str, *more: str) -> subprocess.CompletedProcess[str]:
    return lab.fleet("-i", "lab", "launch", "--engine", "command", "--workdir", workdir, *more, "./job", cwd=tmp_path)


def hang(lab: VirtualLab, source: Path, to: str) -> subprocess.Popen[bytes]:
    """A sync that holds its locks and comes no further."""
    (source / "new").write_text("new")
    noted = source.parent / "noted"
    argv = [sys.executable, "-c", STUCK, str(noted), "-i", "lab", "sync", str(source), "--to", to]
    process = subprocess.Popen(argv, env=lab.env, cwd=lab.home, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until(lambda: noted.exists() and len(noted.read_text()) == len(lab.names) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.slow
def test_a_node_whose_sync_was_killed_between_two_renames(ready_lab: VirtualLab, source: Path, tmp_path: Path) -> None:
    for i in range(FILES):
        (source / f"f{i:04}").write_text("old")
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/half", check=True)
    for i in range(FILES):
        (source / f"f{i:04}").write_text("new")
    victim = ready_lab.names[2]
    real = ready_lab.sh(
        victim, "readlink -f /usr/bin/python3; cp -P /usr/bin/python3 /root/python3; rm /usr/bin/python3"
    )
    hooked = f"""#!/bin/sh\nexec {real} -I -S -c "exec(open('/root/hook').read());$4"\n"""
    ready_lab.inside(victim, "sh", "-c", "cat > /root/hook", stdin=(ENDED_HALF_WAY % (FILES // 2)).encode())
    ready_lab.inside(victim, "sh", "-c", "cat > /usr/bin/python3; chmod +x /usr/bin/python3", stdin=hooked.encode())
    try:
        done = ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/half")
    finally:
        ready_lab.sh(victim, "mv /root/python3 /usr/bin/python3; rm /root/hook")
    assert done.returncode == 1 and victim in done.stderr, done.stderr
    mixture = ready_lab.sh(victim, "cat /root/half/f* | grep -o new | wc -l")
    assert int(mixture) == FILES // 2, done.stderr

    refused = launch(ready_lab, tmp_path, "~/half")
    assert refused.returncode == 123, refused.stderr
    assert f"{victim}: a sync to /root/half was interrupted while it put files in place" in refused.stderr
    assert "hint: run 'fleet -i lab sync' again" in refused.stderr and "nothing was started" in refused.stderr
    there = tmp_path / "there.yaml"
    there.write_text(ready_lab.inventory.read_text().replace("workdir: ~/work", "workdir: ~/half"))
    checked = ready_lab.fleet("-i", str(there), "check", "-q", "--engine", "command")
    assert checked.returncode == 123 and f"{victim}: a sync to /root/half was interrupted" in checked.stdout

    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/half", check=True)
    again = launch(ready_lab, tmp_path, "~/half")
    assert again.returncode == 0, again.stderr


def test_hosts_that_the_last_sync_did_not_reach(ready_lab: VirtualLab, source: Path, tmp_path: Path) -> None:
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/uneven", check=True)
    (source / "part").write_text("new")
    behind = ready_lab.names[2]
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/uneven", "-x", behind, check=True)
    done = launch(ready_lab, tmp_path, "~/uneven", "--json")
    assert done.returncode == 123
    found = [line for line in map(json.loads, done.stdout.splitlines()) if line.get("event") == "finding"]
    assert [f["hosts"] for f in found] == [[behind]] and "the code that was synced differs" in found[0]["message"]


def test_a_module_that_was_changed_on_one_host_since(ready_lab: VirtualLab, source: Path, tmp_path: Path) -> None:
    (source / "lib").mkdir()
    (source / "lib/helper.py").write_text("RATE = 0.1\n")
    (source / "lib/same.py").write_text("x = 1\n")
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/helped", check=True)
    assert launch(ready_lab, tmp_path, "~/helped").returncode == 0
    odd, gone = ready_lab.names[1:3]
    ready_lab.sh(odd, "sed -i s/0.1/0.2/ /root/helped/lib/helper.py; touch /root/helped/lib/same.py")
    ready_lab.sh(gone, "rm /root/helped/lib/helper.py; date > /root/helped/output.txt")
    done = launch(ready_lab, tmp_path, "~/helped")
    assert done.returncode == 123, done.stderr
    assert "modules of the code that was synced differ: lib/helper.py" in done.stderr and "same.py" not in done.stderr
    for name in ready_lab.names:  # a change that is the same everywhere is nobody's mistake
        ready_lab.sh(name, "echo 'RATE = 0.3' > /root/helped/lib/helper.py")
    assert launch(ready_lab, tmp_path, "~/helped").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_launch_and_a_second_sync_while_one_stages(
    ready_lab: VirtualLab, source: Path, tmp_path: Path, how: str
) -> None:
    to = f"~/staged-{how}"
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", to, check=True)
    (source / "part").write_text("new")
    first = hang(ready_lab, source, to)
    try:
        refused = launch(ready_lab, tmp_path, to)
        assert refused.returncode == 123, refused.stderr
        holder = f"from {os.uname().nodename} (pid {first.pid})"
        assert f"a sync to /root/{to[2:]} is under way, {holder}" in refused.stderr
        assert "launch again when it has ended" in refused.stderr
        if how == "frozen":
            second = ready_lab.fleet("-i", "lab", "sync", str(source), "--to", to)
            assert second.returncode == 1 and f"another sync to the same folder is under way, {holder}" in second.stderr
        first.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        # a sync whose head is silent is waited for until its nodes give it up
        ready_lab.fleet("-i", "lab", "sync", str(source), "--to", to, check=True)
    finally:
        first.kill()
        first.communicate(timeout=300)
    after = launch(ready_lab, tmp_path, to)
    assert after.returncode == 0 and after.stdout.count("newnew") == 3, after.stderr


def test_a_sync_waits_for_a_run_that_begins(ready_lab: VirtualLab, source: Path, tmp_path: Path) -> None:
    (source / "job").write_text("#!/bin/sh\ncat part; until [ -e ~/begun ]; do sleep 0.1; done; cat part\n")
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/begins", check=True)
    # however long it takes until the sync has begun
    settled = "import fleet.ops.run.start.start as s; s.SETTLE_SECONDS = 600.0\nfrom fleet.cli.main import main; main()"
    words = ("-i", "lab", "launch", "--engine", "command", "--workdir", "~/begins", "--name", "early", "./job")
    argv = [sys.executable, "-c", settled, *words]
    run = subprocess.Popen(argv, env=ready_lab.env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: len(list(tmp_path.glob("runs/early-*/*/rank*.out"))) == 3 or run.poll() is not None)
    (source / "part").write_text("new")
    told = tmp_path / "told"
    with told.open("wb") as stderr:
        sync = ready_lab.popen("-i", "lab", "sync", str(source), "--to", "~/begins", stderr=stderr)
    until(lambda: "waiting until run early-" in told.read_text() or sync.poll() is not None)
    for host in ready_lab.names:
        ready_lab.sh(host, "touch ~/begun")
    said = sync.communicate(timeout=300)[0].decode()
    out, err = run.communicate(timeout=300)
    for host in ready_lab.names:
        ready_lab.sh(host, "rm ~/begun")
    assert run.returncode == 0, err
    assert out.decode().count("oldold") == 3, "one tree from its start to its end"
    assert sync.returncode == 0 and "sent" in said, told.read_text()
    assert told.read_text().count("waiting until run early-") == 1, told.read_text()


def test_another_projects_script_is_not_run_unasked(ready_lab: VirtualLab, tmp_path: Path) -> None:
    """cd b; fleet launch t.py, in the workdir that both projects have."""
    lab, base = ready_lab, ("-i", "lab", "launch", "--workdir", "~/both", "--engine", "command", "--nnodes", "2")
    a, b = tmp_path / "a", tmp_path / "b"
    for project in (a, b):
        project.mkdir()
        (project / "t.sh").write_text(f"#!/bin/sh\necho {project.name} ran\n")
        (project / "t.sh").chmod(0o755)
        subprocess.run(["git", "init", "-q", project], check=True)
        (project / ".gitignore").write_text("runs\n")
    run = (*base, "./t.sh")
    lab.fleet("-i", "lab", "sync", "--to", "~/both", cwd=a, check=True)

    def record(project: Path) -> Any:
        return json.loads(next((project / "runs").glob("*/run.json")).read_text())

    same = lab.fleet(*run, cwd=a, check=True)
    assert same.stdout.count("a ran") == 2 and "code there" not in same.stderr and record(a)["code"]["ran"] is True
    refused = lab.fleet(*run, cwd=b)
    assert refused.returncode == 123 and "t.sh came from another source" in refused.stderr
    assert "--workdir" in refused.stderr and "--as-there" in refused.stderr and "--force" not in refused.stderr
    there = lab.fleet(*base, "--as-there", "./t.sh", cwd=b, check=True)
    assert there.stdout.count("a ran") == 2
    assert record(b)["code"]["ran"] is False and record(b)["code"]["diff"] is None
    assert {known["code"]["source"]["path"] for known in record(b)["facts"].values()} == {str(a)}
    (a / "t.sh").write_text("#!/bin/sh\necho newer\n")
    (a / "u.py").write_text("")
    older = lab.fleet(*run, cwd=a, check=True)
    assert older.stdout.count("a ran") == 2
    assert re.search(r"code there is of \d\d:\d\d, 1 file differs here: --sync", older.stderr), older.stderr
    for host in lab.names:  # as `git pull` there does
        lab.sh(host, "cd ~/both && printf '#!/bin/sh\\necho pulled\\n' > t.sh")
    assert lab.fleet(*run, cwd=b, check=True).stdout.count("pulled") == 2
    (b / "t.sh").unlink()
    assert lab.fleet(*run, cwd=b, check=True).stdout.count("pulled") == 2


def test_a_rank_that_misses_what_is_ignored_here_has_that_as_its_hint(ready_lab: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/vocab.txt").write_text("words")
    (tmp_path / ".gitignore").write_text("data/\nruns\n")
    (tmp_path / "t.py").write_text("import os\nopen(os.path.abspath('data/vocab.txt'))\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    said = ready_lab.fleet("-i", "lab", "sync", "-v", "--to", "~/missing", cwd=tmp_path, check=True)
    assert "left out by ignore files: data/ (1 in all)" in said.stderr
    shown = ready_lab.fleet("-i", "lab", "--dry-run", "sync", "--to", "~/missing", cwd=tmp_path, check=True)
    assert "left out by ignore files: data/ (1 in all)" in shown.stdout
    words = ("launch", "--workdir", "~/missing", "--engine", "command", "--nnodes", "1", "python3", "t.py")
    failed = ready_lab.fleet("-i", "lab", *words, cwd=tmp_path)
    assert failed.returncode == 1
    assert "data/vocab.txt is here and not sent, by " in failed.stderr and ".gitignore:1" in failed.stderr
