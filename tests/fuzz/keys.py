"""Keys that a node only claims: `python -m tests.fuzz.keys --seconds 600`.

setup-ssh sets up three real sshds of this machine, one of which answers with a key of another's: the head's, another
host's, a user's. What is typed in a row is drawn: setups of some hosts, --replace-key, machines installed anew,
--undo. After each step whoever lived and got in to an honest host before gets in there still.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import fleet.cli.main
from tests.fuzz import hunting
from tests.fuzz.hostile import in_a_fork
from tests.lab.private_sshd import Sshd, make_key

HOSTS = ("gpu1", "gpu2", "gpu3")  # the first of them lies
CLAIMS = ("head", "gpu2", "gpu3") * 3 + ("user", "old", "stranger", "options", "home", "")
SHELL = """#!/bin/sh
HOME={home}; export HOME; cd
if [ ! -s lie ]; then exec sh -c "$SSH_ORIGINAL_COMMAND"; fi
sh -c "$SSH_ORIGINAL_COMMAND" | sed -u -f lie
"""


class Ground:
    """Homes of a head and of three hosts, each with its sshd."""

    def __init__(self, base: Path) -> None:
        self.base, self.sshds = base, dict[str, Sshd]()
        for host in HOSTS:
            shell = base / f"{host}.sh"
            self.sshds[host] = Sshd(base / "sshd" / host, settings=[f"ForceCommand {shell}"])
            shell.write_text(SHELL.format(home=self.home(host)))
            shell.chmod(0o755)
            keys = base / "sshd" / host / "authorized_keys"
            keys.unlink()
            keys.symlink_to(self.home(host) / ".ssh/authorized_keys")
        for name in (
            "user",
            "old",
            "stranger",
            "head",
            *(f"{host}{again}" for host in HOSTS for again in ("", "-anew")),
        ):
            make_key(base / "keys" / name)
        ports = (f"{host}: {{address: 127.0.0.1, port: {sshd.port}}}" for host, sshd in self.sshds.items())
        lines = ["defaults: {identity_file: ~/.ssh/id_ed25519}", f"hosts: {{{', '.join(ports)}}}"]
        (base / "fleet.yaml").write_text("\n".join(lines) + "\n")

    def home(self, who: str) -> Path:
        return self.base / "home" / who

    def public(self, name: str) -> str:
        return " ".join((self.base / "keys" / f"{name}.pub").read_text().split()[:2])

    def restore(self) -> None:
        shutil.rmtree(self.base / "home", ignore_errors=True)
        self.keys = {who: who for who in ("head", *HOSTS)}  # who has which key now
        for who in self.keys:
            self.install(who, who)
        (self.home("head") / ".ssh/config").write_text(f"IdentityFile {self.base / 'keys/old'}\n")

    def install(self, who: str, key: str) -> None:
        """A machine as it is at first: its key, and whom it lets in: a user, and the head by an older key."""
        ssh = self.home(who) / ".ssh"
        shutil.rmtree(ssh, ignore_errors=True)
        ssh.mkdir(mode=0o700, parents=True)
        for end in ("", ".pub"):
            shutil.copy(self.base / "keys" / f"{key}{end}", ssh / f"id_ed25519{end}")
        (ssh / "authorized_keys").write_text(f"{self.public('user')} me\n{self.public('old')} mine\n")
        self.keys[who] = key

    def lie(self, claim: str) -> None:
        text = f'command="true" {self.public("gpu2")}' if claim == "options" else ""
        text = text or (self.public(self.keys.get(claim, claim)) if claim not in ("home", "") else "")
        script = f"s|^KEY .*|KEY id_ed25519 {text}|\n" if text else ""
        if claim == "home":  # it says that it shares the other one's
            info = (self.home("gpu2") / ".ssh/authorized_keys").stat()
            script = f"s|^HOME .*|HOME {info.st_ino} {info.st_mtime}|\n"
        (self.home("gpu1") / "lie").write_text(script)

    def let_in(self) -> dict[str, set[str]]:
        """Honest host -> who of the living gets in there."""
        found = {}
        for host in HOSTS[1:]:
            lines = (self.home(host) / ".ssh/authorized_keys").read_text().splitlines()
            keys = {" ".join(line.split()[:2]) for line in lines}
            living = {"user": "user", "old": "old", **self.keys}
            found[host] = {who for who, key in living.items() if who != "gpu1" and self.public(key) in keys}
        return found

    def close(self) -> None:
        for sshd in self.sshds.values():
            sshd.stop()


def made(pick: random.Random) -> list[tuple[str, str, list[str]]]:
    """(what gpu1 claims, a host that is installed anew before, what is typed), in a row."""
    steps = [(pick.choice(CLAIMS), "", ["setup-ssh", "--tofu"])]
    for _ in range(pick.choice([1, 1, 2])):
        words = ["setup-ssh", "--tofu"]
        anew = pick.choice(["", "", "gpu2", "gpu3"])
        replaced = {host for host in HOSTS if pick.random() < 0.5} | ({anew} if anew else set())
        for host in sorted(replaced):
            words += ["--replace-key", host]
        if not replaced and pick.random() < 0.5:
            words = ["setup-ssh", "--undo"]
        elif pick.random() < 0.6:
            words += ["-w", ",".join(sorted(replaced | {pick.choice(HOSTS)}))]
        steps.append((pick.choice(CLAIMS), anew, words))
    return steps


def typed(ground: Ground, words: list[str]) -> dict[str, Any]:
    os.chdir(ground.base)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    shown = io.StringIO()
    environ = {"HOME": str(ground.home("head")), "SSH_AUTH_SOCK": ""}
    with mock.patch.dict(os.environ, environ), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = fleet.cli.main.run(["-i", "fleet.yaml", *words])
    return {"code": code, "out": shown.getvalue()}


def case(ground: Ground, seed: int) -> str | None:
    """What is wrong, in words."""
    ground.restore()
    told = []
    for claim, anew, words in made(random.Random(seed)):
        if anew:
            ground.install(anew, f"{anew}-anew")
        before = ground.let_in()
        ground.lie(claim)
        ended = in_a_fork(lambda words=words: typed(ground, words), 120)  # type: ignore[misc]
        told.append(f"{'' if not anew else anew + ' anew; '}claims {claim or 'nothing'}: {' '.join(words)}")
        wrong = list(ended.faults)
        if ended.code in (None, 125) or "Traceback (most recent call last)" in ended.out:
            wrong.append(f"code {ended.code}: {ended.out[-300:]}")
        after, own = ground.let_in(), {"user", "old"}
        for host, who in before.items():
            lost = (who & own if "--undo" in words else who) - after[host]
            if lost:
                wrong.append(f"{', '.join(sorted(lost))} no longer gets in to {host}")
        if wrong:
            return f"{' | '.join(told)}: {'; '.join(wrong)}"
    return None


def hunt(first: int, seconds: float, most: int = 1, say: hunting.Say = print) -> list[str]:
    """Cases from a seed on, for so long, or until so many faults are found."""
    with tempfile.TemporaryDirectory(prefix="fleet-keys-") as folder:
        ground = Ground(Path(folder))

        def one(seed: int) -> str | None:
            wrong = case(ground, seed)
            return wrong and f"seed {seed}: {wrong}"

        try:
            found, tried = hunting.hunt(one, first, seconds, most, say)
        finally:
            ground.close()
    say(f"keys: {tried}; {len(found)} faults")
    return found


def main() -> int:
    given = hunting.parser().parse_args()

    def one(seed: int) -> str | None:
        return next(iter(hunt(seed, 0.001, say=lambda text: None)), None)

    return hunting.run(given, one, lambda first, say: hunt(first, given.seconds, given.faults, say))


if __name__ == "__main__":
    sys.exit(main())
