"""Doors that stay open: `python -m tests.fuzz.doors SEED CASES` draws what setup-ssh finds in ~/.ssh of a head and two
hosts of a lab, and what is typed there: setups and undos of two inventories that share hosts, some killed, some while a
host is down. After each step users get in who got in before; an inventory that is set up reaches its hosts; after the
last undo every file is as it was, to the byte and the mode.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.setup_ssh_tools import Head, forget_all
from tests.lab.virtual_lab import FLEET, VirtualLab, bring_up

TEAM = "/srv/team/keys"
SNAPSHOT = (
    "cd /root; for p in $(find .ssh /srv/team 2>/dev/null | sort); do "
    'echo "$p $(stat -c "%a %F" $p) $(readlink $p) $([ -f $p ] && sha256sum < $p)"; done'
)


@dataclass
class Step:
    """what: "setup" or "undo"; inventory: "a" or "b"; kill: seconds after which it is killed; down: a host that is."""

    what: str
    inventory: str
    kill: float | None
    down: str | None

    def __str__(self) -> str:
        killed = f", killed after {self.kill:g} s" if self.kill is not None else ""
        return f"{self.what} {self.inventory}{killed}{f', {self.down} down' if self.down else ''}"


@dataclass
class Case:
    """before: host -> a script that makes what is there. steps: as they are typed. b: hosts of the second inventory."""

    seed: int
    before: dict[str, str]
    head: str
    steps: list[Step]
    b: list[str]
    mesh: bool
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        there = [f"{host}: {script}" for host, script in self.before.items()]
        return "\n  ".join([f"seed {self.seed}: b has {self.b}", *there, f"head: {self.head}", *map(str, self.steps)])


def make(seed: int, hosts: list[str]) -> Case:
    rng = random.Random(f"doors {seed}")
    before = {}
    for host in hosts:
        lines = [f"mkdir -m {rng.choice(('700', '755', '775', '2755'))} /root/.ssh"]
        where = rng.choice(("file", "file", "team", "none"))
        if where == "team":
            lines += ["mkdir -p /srv/team", f"cat > {TEAM}", f"chmod {rng.choice(('644', '640', '600'))} {TEAM}"]
            lines += [f"ln -s {TEAM} /root/.ssh/authorized_keys"]
        elif where == "file":
            lines += ["cat > /root/.ssh/authorized_keys"]
            lines += [f"chmod {rng.choice(('600', '644', '664'))} /root/.ssh/authorized_keys"]
        if rng.random() < 0.4:
            lines += [f"printf '# mine{rng.choice(('', chr(92) + 'n'))}' > /root/.ssh/config"]
        if rng.random() < 0.3:
            lines += [rng.choice((": > /root/.ssh/known_hosts", "printf '# none' > /root/.ssh/known_hosts"))]
        if rng.random() < 0.2:
            lines = ["true"]
        before[host] = "; ".join(lines)
    head = "; ".join(
        [
            *["mkdir -m 755 .ssh"] * (rng.random() < 0.6),
            *["mkdir -p .ssh; echo '# mine' > .ssh/config"] * (rng.random() < 0.3),
            *["mkdir -p -m 700 .ssh; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519"] * (rng.random() < 0.3),
        ]
    )
    steps = [Step("setup", "a", None, None)] if rng.random() < 0.7 else []
    for _ in range(rng.randint(2, 4)):
        kill = round(rng.uniform(0.1, 2.0), 2) if rng.random() < 0.35 else None
        down = rng.choice(hosts) if rng.random() < 0.2 else None
        steps.append(Step(rng.choice(("setup", "setup", "undo")), rng.choice("ab"), kill, down))
    return Case(seed, before, head or "true", steps, rng.choice((hosts, hosts[1:])), rng.random() < 0.8)


class Play:
    def __init__(self, case: Case, lab: VirtualLab, folder: Path) -> None:
        self.case, self.lab, self.folder = case, lab, folder
        self.home = folder / "home"
        self.home.mkdir()
        self.heads = {name: Head(lab, self.home, folder / f"{name}.yaml") for name in "ab"}
        self.heads["a"].write_inventory({name: {} for name in lab.names})
        self.heads["b"].write_inventory({name: {} for name in case.b})
        self.stands: dict[str, bool] = {}  # which inventories are set up, as their last step said
        self.key = folder / "user_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)

    def prepare(self) -> None:
        forget_all(self.lab)
        public = Path(f"{self.key}.pub").read_text()
        for host, script in self.case.before.items():
            self.lab.sh(host, "rm -rf /srv/team")
            parts = script.replace("cat >", f"printf %s '{public}' >")
            self.lab.inside(host, "sh", "-ec", parts)
        subprocess.run(["sh", "-ec", self.case.head], cwd=self.home, check=True)
        self.doors = [host for host in self.lab.names if "cat >" in self.case.before[host] and self.opens(host)]
        self.was = self.snapshot()

    def opens(self, host: str) -> bool:
        argv = ["ssh", "-F", "none", "-i", str(self.key), "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"]
        argv += [
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            f"root@{self.lab.address(host)}",
        ]
        return subprocess.run([*argv, "true"], capture_output=True, timeout=60, check=False).returncode == 0

    def snapshot(self) -> dict[str, str]:
        here = subprocess.run(
            ["sh", "-c", SNAPSHOT.replace("cd /root", "cd .").replace("/srv/team", "")],
            cwd=self.home,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return {"head": here, **{host: self.lab.sh(host, SNAPSHOT) for host in self.lab.names}}

    def step(self, step: Step) -> None:
        head = self.heads[step.inventory]
        words = ["setup-ssh", "--undo"] if step.what == "undo" else ["setup-ssh", "--tofu"]
        words += ["--no-mesh"] * (step.what == "setup" and not self.case.mesh)
        argv = [FLEET, "-i", str(head.inventory), *words, "--password-file", str(self.lab.password_file)]
        if step.down:
            self.lab.stop_sshd(step.down)
        process = subprocess.Popen(
            argv,
            env={**self.lab.env, "HOME": str(self.home)},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=step.kill if step.kill is not None else 180)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            said = process.communicate()[0]
            time.sleep(1.0)  # what runs on a host ends its call
        if step.down:
            self.lab.sh(
                step.down, "/usr/sbin/sshd -E /var/log/sshd.log; while [ ! -e /run/sshd.pid ]; do sleep 0.02; done"
            )
        if process.returncode == 125 or "Traceback" in said:
            self.wrong(f"{step}: {said[-600:]}")
        if step.what == "setup":
            self.stands[step.inventory] = process.returncode == 0
        else:
            self.stands.pop(step.inventory, None)
        self.check(str(step))

    def wrong(self, text: str) -> None:
        self.case.wrong.append(text)

    def check(self, after: str) -> None:
        for host in self.doors:
            if not self.opens(host):
                self.wrong(f"after {after}: its user does not get in to {host} any more")
        for name, stands in self.stands.items():
            done = self.heads[name].fleet("exec", "--", "true") if stands else None
            if done is not None and done.returncode:
                self.wrong(f"after {after}: {name} is cut off: {done.stderr[-300:]}")

    def end(self) -> None:
        """Undo all that is on record."""
        for name in "abab":
            done = self.heads[name].setup("--undo")
            if "nothing is on file" in done.stderr:  # a kill came before the host's key was: what its hint says
                self.heads[name].setup("--tofu")
                done = self.heads[name].setup("--undo")
            self.stands.pop(name, None)
            if done.returncode and "no record of setup-ssh" not in done.stderr:
                self.wrong(f"undo {name} at the end: {done.stderr[-400:]}")
            self.check(f"undo {name} at the end")
        now = self.snapshot()
        for where, was in self.was.items():
            if now[where] != was:
                self.wrong(f"{where} is not as it was:\n{was}\nbut\n{now[where]}")


def play(case: Case, lab: VirtualLab) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="fleet-doors-") as folder:
        played = Play(case, lab, Path(folder))
        played.prepare()
        for step in case.steps:
            played.step(step)
        played.end()
    return case.wrong


@contextmanager
def a_lab() -> Iterator[VirtualLab]:
    with tempfile.TemporaryDirectory(prefix="fleet-doors-") as folder:
        lab = bring_up(Path(folder), f"doors{os.getpid()}", ["2"])
        try:
            yield lab
        finally:
            lab.fleet("lab", "down", "-q", timeout=120)


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    found = 0
    with a_lab() as lab:
        for seed in range(first, first + count):
            case = make(seed, lab.names)
            if wrong := play(case, lab):
                found += 1
                print(case, *wrong, sep="\n  ", flush=True)
    print(f"{count} cases from seed {first} on: {found} wrong")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
