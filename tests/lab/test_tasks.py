"""Fabfiles over four real hosts: one as fabric's documentation has them, and the one that comes with fleet."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab

ROOT = Path(__file__).parents[2]
# in the shape of fabric's "Getting started": nothing in it knows of fleet
OF_DOCS = """\
from fabric import Config, Connection, SerialGroup, task
from invoke import Responder


@task
def upload_and_unpack(c):
    if c.run("test -f /opt/mydata/myfile", warn=True).failed:
        c.run("mkdir -p /opt/mydata")
        c.put("myfiles.tgz", "/opt/mydata")
        c.run("tar -C /opt/mydata -xzf /opt/mydata/myfiles.tgz")
    print(c.run("cat /opt/mydata/myfile", hide=True).stdout.strip())
    c.run("rm -r /opt/mydata")


@task
def disk_free(c):
    uname = c.run("uname -s", hide=True)
    if "Linux" in uname.stdout:
        command = "df -h / | tail -n1 | awk '{print $5}'"
        return c.run(command, hide=True).stdout.strip()
    raise SystemExit(f"No idea how to get disk space on {c}!")


@task
def answer(c):
    passing = Responder(pattern=r"\\[Y/n\\] ", response="yes\\n")
    c.run("printf 'sure? [Y/n] '; read it; echo; echo heard $it", pty=True, watchers=[passing])


@task
def become(c, password, user="ada"):
    config = Config(overrides={"sudo": {"password": password}})
    there = Connection(c.original_host, user=user, config=config)
    there.sudo("whoami", hide="stderr")


@task(hosts=["nobody-knows"])
def several(c, names):
    for each in SerialGroup(*names.split(",")):
        print(f"{each.original_host}: {each.run('hostname', hide=True).stdout.strip()}")


@task
def from_one_to_another(c, to):
    inner = Connection(to, gateway=c)
    inner.run("echo ${SSH_CLIENT%% *}")
"""

GIVEN = r"""
from fabric import task
from invoke import Responder

@task
def given(c):
    value = "a 'b' \"c\" $(id) \\ \n # second"
    show = "printf '%s|' \"$X\"; tr '\\0' ' ' </proc/$PPID/cmdline"
    for more in ({}, {"watchers": [Responder("never", "")]}, {"pty": True}):
        said = c.run(show, env={"X": value}, hide=True, **more).stdout.replace("\r", "")
        assert said.startswith(value + "|"), said
        assert "second" not in said.partition("|")[2], said
"""


@pytest.fixture(scope="module")
def four(breakable: BreakableLab) -> VirtualLab:
    """Four hosts, on each of which root's key lets in ada, too, who has to give sudo her password."""
    lab = breakable.enrol()
    for name in lab.names:
        lab.sh(
            name,
            "useradd -m -s /bin/bash ada && echo ada:pass-word | chpasswd "
            "&& echo 'ada ALL=(ALL) ALL' >/etc/sudoers.d/ada "
            "&& cp -r /root/.ssh /home/ada/ && chown -R ada /home/ada/.ssh",
        )
    return lab


def play(lab: VirtualLab, *words: str, code: int = 0, **options: object) -> tuple[str, str]:
    done = lab.fleet("-i", "lab", *words, **options)  # type: ignore[arg-type]
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout, done.stderr


def test_a_fabfile_of_fabrics_documentation(four: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "fabfile.py").write_text(OF_DOCS)
    (tmp_path / "myfile").write_text("what was packed\n")
    with tarfile.open(tmp_path / "myfiles.tgz", "w:gz") as archive:
        archive.add(tmp_path / "myfile", "myfile")
    out, _ = play(four, "play", "fabfile.py", "upload-and-unpack", "answer", cwd=tmp_path)
    assert out.count("what was packed") == 1 and out.count("heard yes") == 1 and out.count("(4)") == 2
    first, second, *_ = four.names
    out, _ = play(four, "-w", first, "play", "fabfile.py:become", "pass-word", cwd=tmp_path)
    assert out == f"--- {first} ---\nroot\n"
    _, err = play(four, "-w", first, "play", "fabfile.py:become", "wrong", code=1, cwd=tmp_path)
    assert "sudo does not take the password" in err
    out, _ = play(four, "-w", first, "play", "fabfile.py:from-one-to-another", second, cwd=tmp_path)
    assert four.address(first) in out  # it came by way of that one
    out, _ = play(four, "-w", first, "play", "fabfile.py:several", f"{first},root@{second}:22", cwd=tmp_path)
    assert f"{second}: {second}" in out


def test_variables_arrive_as_they_are_and_in_no_command_line(four: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(GIVEN)
    play(four, "-w", four.names[0], "play", "t.py:given", cwd=tmp_path)


def test_the_tasks_that_come_with_fleet(four: VirtualLab, tmp_path: Path) -> None:
    ada = tmp_path / "ada.yaml"
    hosts = {name: {"address": four.address(name)} for name in four.names}
    ada.write_text(json.dumps({"defaults": {"user": "ada"}, "hosts": hosts}))
    tasks = str(ROOT / "examples/tasks.py")
    secret = {"FABRIC_SUDO_PASSWORD": "pass-word"}
    for words in (["limits"], ["limits", "limits", "--undo"]):
        out, err = play(four, "-i", str(ada), "play", tasks, *words, cwd=tmp_path, env=secret)
        assert "(4) ---\nroot 644 82" in out and "pass-word" not in out + err
    out, _ = play(four, "-i", str(ada), "play", tasks, "report", "cpus", "kernels", cwd=tmp_path)
    told = [json.loads((tmp_path / f"reports/{name}.json").read_text()) for name in four.names]
    assert [each["host"] for each in told] == four.names
    assert f"{sum(each['cpus'] for each in told)} CPUs\n4 hosts, of 1 kind: " in out


OF_ONE_MACHINE = """
from fabric import task

@task
def same(c):
    c.get("/etc/hostname", "same.bin")

@task
def each(c):
    c.get("/etc/hostname", "of-{host}.bin")

@task
def forward(c):
    with c.forward_local(18022, 22):
        pass
"""


def test_a_file_and_a_port_of_this_machine_are_one_hosts(four: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(OF_ONE_MACHINE)
    _, err = play(four, "play", "t.py:same", code=2, cwd=tmp_path)
    assert "same.bin would be the file of" in err and "c.get(remote, '{host}/')" in err, err
    assert (tmp_path / "same.bin").read_text().strip() in four.names
    play(four, "play", "t.py:each", cwd=tmp_path)
    assert len(list(tmp_path.glob("of-*.bin"))) == 4
    _, err = play(four, "play", "t.py:forward", code=2, cwd=tmp_path)
    assert "c.forward_local(18022): this machine has that port once" in err, err


@pytest.mark.slow
def test_a_swapped_host_key_is_refused(four: VirtualLab, tmp_path: Path) -> None:
    """Also where the task opens the connection itself, and where the host is the gateway.

    The last of this file: its host is refused from then on.
    """
    *_, other, swapped = four.names
    four.swap_host_key(swapped)
    bodies = {
        "opened": f"Connection('{swapped}').run('hostname')",
        "by_address": f"Connection('{four.address(swapped)}').put(__file__, '/tmp/x')",
        "grouped": f"ThreadingGroup('{swapped}').run('hostname')",
        "through": f"Connection('{other}', gateway=Connection('{swapped}')).run('true')",
    }
    own = [f"@task(hosts=['{other}'])\ndef {name}(c):\n    {body}\n" for name, body in bodies.items()]
    each = "@task\ndef each(c):\n    c.run('hostname')\n"
    (tmp_path / "t.py").write_text("from fabric import Connection, ThreadingGroup, task\n" + each + "".join(own))
    out, err = play(four, "play", "t.py", "each", code=122, cwd=tmp_path)
    assert f"host {swapped}: host key changed" in err and "hint:" in err
    assert all(name in out for name in four.names[:-1]) and f"\n{swapped}\n" not in out
    for task in bodies:
        _, err = play(four, "play", f"t.py:{task.replace('_', '-')}", code=122, cwd=tmp_path)
        assert "host key changed" in err and (task == "through" or f"{swapped}: host key" in err), task
