"""tools/provision as `make` calls it, on a machine that is a copy: what apt does is recorded, or done by the real
maintainer script of openssh-server; nothing of this machine is touched."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

ROOT = Path(__file__).parents[2]
YOURS = "#!/bin/sh\n# the user's own\nexit 0\n"
POLICY = "/usr/sbin/policy-rc.d"
# Overlays as in the lab, so that all that is written ends with the namespace; systemd seems to run.
ENTER = r"""
set -e
layers=$1/layers; mkdir -p "$layers"; mount -t tmpfs none "$layers"
for folder in etc var usr; do
    mkdir "$layers/$folder" "$layers/$folder-work"
    mount -t overlay none -o "lowerdir=/$folder,upperdir=$layers/$folder,workdir=$layers/$folder-work" "/$folder"
done
mount -t tmpfs none /run; mkdir -p /run/systemd/system
printf '#!/bin/sh\necho "$@" >>%s/systemctl.log\n' "$1" >/usr/bin/systemctl
rm -f /usr/sbin/policy-rc.d*
export PATH=$1/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd "$1/clone"
eval "$2"
"""
# Where Debian says that an sshd starts with the machine
ENABLED = "find /etc/systemd/system /etc/rc?.d -name '*ssh*.s*' -o -path '*/rc?.d/S*ssh' | sort"
FORGET = "rm -rf $(find /etc/systemd/system /etc/rc?.d /var/lib/systemd/deb-systemd-helper* -name '*ssh*')"
POSTINST = """
for option in "$@"; do case $option in DPkg::Path=*) PATH=${option#*=} ;; esac; done
export DPKG_MAINTSCRIPT_PACKAGE=openssh-server DPKG_MAINTSCRIPT_NAME=postinst
case "$*" in *install*) /var/lib/dpkg/info/openssh-server.postinst configure ;; esac
"""


class Machine:
    """Its own /etc, /var, /usr and processes, a clone that has tools/ alone, and stubs first on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        shutil.copytree(ROOT / "tools", folder / "clone/tools", symlinks=True)
        self.stub("apt-get", "")
        self.packages({})

    def stub(self, program: str, body: str) -> None:
        """A program that records how it was called, then runs `body`."""
        log = self.folder / f"{program}.log"
        path = self.folder / "bin" / program
        path.write_text(f'#!/bin/sh\necho "$@" >>{log}\n{body}')
        path.chmod(0o755)

    def packages(self, states: dict[str, str], broken: str = "") -> None:
        """What dpkg-query knows: "installed" for all but `states`; "" is a package that it never heard of."""
        states = {**states, "*Eflag*": f"reinstreq {broken}" if broken else "-"}
        cases = "".join(f'{name}) [ -n "{state}" ] || exit 1; echo {state} ;; ' for name, state in states.items())
        self.stub("dpkg-query", f'eval "name=\\${{$#}}"; case $name in {cases} *) echo installed ;; esac')

    def calls(self, program: str) -> list[str]:
        log = self.folder / f"{program}.log"
        return log.read_text().splitlines() if log.exists() else []

    def popen(self, line: str, stdin: int = subprocess.DEVNULL, stderr: int = subprocess.PIPE) -> Popen[str]:
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", ENTER, "enter"]
        return Popen(
            [*argv, str(self.folder), line],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={"HOME": str(self.folder), "TERM": "dumb"},
        )

    def run(self, line: str, code: int = 0) -> tuple[str, str]:
        with self.popen(line) as process:
            out, err = process.communicate(timeout=300)
        assert process.returncode == code, out + err
        return out, err


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


SERVER = "tools/provision system openssh-server"


def test_the_real_package_neither_starts_nor_enables_its_sshd(machine: Machine) -> None:
    machine.packages({"openssh-server": ""})
    machine.stub("apt-get", POSTINST)
    fresh = f"{FORGET}; rm /usr/sbin/sshd"
    out, _ = machine.run(f"{fresh}; {SERVER}; echo; {ENABLED}")
    assert out.split() == []
    assert [call for call in machine.calls("systemctl") if "daemon-reload" not in call] == []
    # as Debian does it by itself: the proof that this test could fail
    apt = "apt-get install -o DPkg::Path=/usr/sbin:/usr/bin:/sbin:/bin"
    out, _ = machine.run(f"{fresh}; export DEBIAN_FRONTEND=noninteractive; {apt}; {ENABLED}")
    assert "/etc/rc2.d/S01ssh" in out
    assert any("preset ssh.service" in call for call in machine.calls("systemctl"))


@pytest.mark.parametrize("state", ["", "config-files", "half-configured", "unpacked"])
def test_an_sshd_that_is_enabled_stays_so(machine: Machine, state: str) -> None:
    machine.packages({"openssh-server": state})
    machine.stub("apt-get", POSTINST)
    wants = "/etc/systemd/system/multi-user.target.wants"
    before = (
        f"{FORGET}; rm /usr/sbin/sshd; mkdir -p {wants}; ln -s /lib/systemd/system/ssh.service {wants}/; "
        "update-rc.d ssh defaults; rm -f ../systemctl.log"
    )
    out, _ = machine.run(f"{before}; {ENABLED}; echo --; {SERVER}; {ENABLED}")
    then, now = out.split("--\n")
    assert f"{wants}/ssh.service\n" in then and "/S01ssh\n" in then
    assert now == then
    assert [call for call in machine.calls("systemctl") if "daemon-reload" not in call] == []


@pytest.mark.parametrize("state", ["", "not-installed", "config-files"])
def test_an_sshd_of_other_making_is_not_written_over(machine: Machine, state: str) -> None:
    machine.packages({"openssh-server": state, "rsync": ""})
    machine.run("echo mine >/usr/sbin/sshd; chmod 755 /usr/sbin/sshd; tools/provision system openssh-server rsync")
    update, install = machine.calls("apt-get")
    assert update == "update"
    assert install.split()[-1] == "rsync" and "openssh-server" not in install
    assert machine.calls("systemctl") == []


def test_without_systemd(machine: Machine) -> None:
    machine.packages({"openssh-server": ""})
    machine.stub("apt-get", POSTINST)
    out, _ = machine.run(f"{FORGET}; rm -r /usr/sbin/sshd /run/systemd /usr/bin/systemctl; {SERVER}; {ENABLED}")
    assert out == ""


@pytest.mark.parametrize("policy", [None, YOURS])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_kill_while_apt_runs_leaves_the_policy_alone(machine: Machine, policy: str | None, number: int) -> None:
    machine.packages({"rsync": ""})
    machine.stub("apt-get", f"[ $1 = update ] || {{ echo >{machine.folder}/up; read go <{machine.folder}/go; }}")
    mine = f"cat >{POLICY} <<'END'\n{policy}END\n" if policy else ":"
    look = f"for f in {POLICY}*; do if [ -e $f ]; then echo $f; cat $f; fi; done"
    line = f"""{mine}
        mkfifo ../up ../go; set -m; tools/provision system rsync & pid=$!; set +m; read up <../up
        kill -{number} -- {"-$pid" if number == signal.SIGINT else "$pid"}
        echo >../go & wait $pid || echo $?; {look}
        echo --; {SERVER}; {look}"""
    out, _ = machine.run(line)
    ended, again = out.split("--\n")
    there = f"{POLICY}\n{policy}" if policy else ""
    assert ended == f"{128 + number}\n{there}"
    assert again == there


def test_a_package_that_a_killed_dpkg_was_unpacking_comes_first(machine: Machine) -> None:
    machine.packages({"openssh-server": "unpacked"}, broken="ucf")
    machine.run(SERVER)
    update, again, install = machine.calls("apt-get")
    assert again.endswith(" --reinstall ucf") and "--reinstall" not in install


def test_apt_asks_nothing_and_reads_nothing(machine: Machine) -> None:
    machine.packages({"rsync": "", "pdsh": ""})
    machine.stub("apt-get", "cat >&2; env | grep -E '^(DEBIAN|UCF|NEEDRESTART)' | sort >&2")
    with machine.popen("tools/provision system rsync pdsh; cat; cat .provision.log", subprocess.PIPE) as process:
        out, err = process.communicate("for the one who typed make\n", timeout=300)
    typed, *log = out.splitlines()
    assert typed == "for the one who typed make"
    assert typed not in log
    assert {"DEBIAN_FRONTEND=noninteractive", "UCF_FORCE_CONFFOLD=1", "NEEDRESTART_SUSPEND=1"} <= set(log)
    words = machine.calls("apt-get")[-1].split()
    assert words[0] == "install" and words[-2:] == ["rsync", "pdsh"]
    assert {"-y", "--no-remove", "Dpkg::Options::=--force-confold", "Dpkg::Options::=--force-confdef"} <= set(words)
    assert [line.rsplit(" ", 2)[0] for line in err.splitlines()] == ["Debian packages: rsync pdsh ..."]


def test_apt_that_fails_shows_all_it_said(machine: Machine) -> None:
    machine.packages({"rsync": ""})
    machine.stub("apt-get", "seq 50 >&2; [ $1 = update ]")
    _, err = machine.run("tools/provision system rsync", code=1)
    first, *said, error, hint = err.splitlines()
    assert first == "Debian packages: rsync ... failed"
    assert said.count("50") == 2
    assert error == "error: Debian packages: exit code 1"
    assert ".provision.log" in hint and "make" in hint


@pytest.fixture
def pip(machine: Machine) -> Callable[[str], None]:
    """A python3 whose `-m venv` makes another like it, and whose pip does what it is told."""

    def stub(body: str) -> None:
        machine.stub(
            "python3",
            f"""case "$*" in
            *"-m venv"*) mkdir -p .venv/bin; cp {machine.folder}/bin/python3 .venv/bin/python ;;
            *"pip install"*) {body} ;;
        esac""",
        )

    (machine.folder / "clone/setup.cfg").write_text("")
    return stub


def test_pip_is_a_line_a_step_and_only_once(machine: Machine, pip: Callable[[str], None]) -> None:
    pip("echo 'WARNING: The script x is installed in a place that is not on PATH' >&2")
    out, err = machine.run("tools/provision python demo; echo; cat .provision.log")
    assert "WARNING" in out
    steps = [line.rsplit(" ", 2)[0] for line in err.splitlines()]
    assert steps == ["A Python environment in .venv ...", "Python packages: fleet, torch and scikit-learn ..."]
    assert machine.run("tools/provision python demo") == ("", "")


def test_pip_that_fails_ends_the_step_at_once(machine: Machine, pip: Callable[[str], None]) -> None:
    pip("echo no such index; exit 2")
    _, err = machine.run("tools/provision python demo", code=1)
    assert err.count("no such index") == 1
    assert "error: A Python environment in .venv: exit code 2" in err
    assert not list((machine.folder / "clone/.venv").glob(".provisioned*"))


def test_on_a_terminal_the_time_so_far_is_shown_and_the_line_is_not_broken(machine: Machine) -> None:
    machine.packages({"rsync": ""})
    os.mkfifo(machine.folder / "go")
    machine.stub("apt-get", f"[ $1 = install ] || read go <{machine.folder}/go")
    main, end = os.openpty()
    with machine.popen(f"export TERM=xterm; stty cols 80 <&2; {SERVER} {'rsync ' * 20}", stderr=end) as process:
        os.close(end)
        shown = b""
        while not re.search(rb"\r[^\n\r]* s", shown):  # written again, with the time
            shown += os.read(main, 65536)
        (machine.folder / "go").write_text("\n")
        with contextlib.suppress(OSError):  # nobody has its other end any more
            while piece := os.read(main, 65536):
                shown += piece
        assert process.wait(300) == 0, shown
    os.close(main)
    *head, last = shown.decode().split("\r\n")[:-1]
    assert head and all(len(text) < 80 for text in head)
    redrawn = last.split("\r")
    assert len(redrawn) > 2 and all(len(text) < 80 for text in redrawn)
    assert redrawn[-1].startswith("rsync")
