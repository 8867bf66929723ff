"""A lab's network in a test's hands: what `check` and `launch` find of it, and a second wire between its hosts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from fleet.lab import switch
from tests.lab.healing import BreakableLab

SECOND = "lan2"  # the bridge of the second wire, in the switch


class Net:
    """Four hosts. `check` and `launch` answer with their findings: (severity, rule, hosts' numbers, message). facts: of
    each host, from the last time."""

    def __init__(self, lab: BreakableLab) -> None:
        self.lab, self.names = lab, lab.names
        self.ips = [lab.address(name) for name in lab.names]
        self.facts: dict[str, Any] = {}

    def filters(self, number: int, hook: str, rule: str) -> None:
        self.chains(number, {hook: f"{rule};"})

    def chains(self, number: int, rules: dict[str, str]) -> None:
        """rules: by hook, each with its semicolon."""
        chains = (f"chain {hook} {{ type filter hook {hook} priority 0; {text} }};" for hook, text in rules.items())
        self.lab.sh(self.names[number], f"nft 'table inet shut {{ {' '.join(chains)} }}'")

    def opens(self) -> None:
        for name in self.names:
            self.lab.sh(name, "nft delete table inet shut 2>/dev/null; true")

    def check(self, inventory: Path | None = None, *, code: int) -> list[tuple[str, str, str, str]]:
        where = ("-i", str(inventory or "lab"))
        done = self.lab.fleet(*where, "check", "--json")
        assert done.returncode == code, done.stdout + done.stderr
        document = json.loads(done.stdout)
        self.facts = {name: it["facts"] for name, it in document["hosts"].items()}
        found = [self._brief(each) for each in document["findings"] if self._of_networks(each)]
        words = ("launch", "--json", "--engine", "command", "--workdir", "/", "/bin/true")
        done = self.lab.fleet(*where, *words, cwd=self.lab.home)
        assert done.returncode == code, done.stdout + done.stderr
        events = map(json.loads, done.stdout.splitlines())
        findings = [each for each in events if each.get("event") == "finding"]
        assert [self._brief(each) for each in findings if self._of_networks(each)] == found, done.stdout
        return found

    @staticmethod
    def _of_networks(found: dict[str, Any]) -> bool:
        """Not of a workdir, and not of a step that took a busy machine too long."""
        return "workdir" not in found["id"] and not found["id"].startswith("hangs-")

    def _brief(self, found: dict[str, Any]) -> tuple[str, str, str, str]:
        numbers = "".join(str(self.names.index(name)) for name in found["hosts"])
        return found["severity"], found["id"], numbers, found["message"]

    # -- a second wire ---------------------------------------------------------------------------------------------
    def _in_switch(self, lines: str, check: bool = True) -> None:
        state = json.loads((self.lab.state_dir / "state.json").read_text())
        inside = [*switch.in_switch(state["switch_pid"]), "ip", "-force", "-batch", "-"]
        subprocess.run(inside, input=lines, text=True, check=check, capture_output=True, timeout=60)

    def wire(self, names: list[str]) -> None:
        """Plugs an interface of that name into each host, all of them into one more switch."""
        lines = f"link add name {SECOND} mtu 9000 type bridge mcast_snooping 0\nlink set {SECOND} up\n"
        for n, (host, name) in enumerate(zip(self.names, names, strict=False)):
            pid = self.lab.hosts[host]["pid"]
            lines += f"link add q{n} mtu 9000 type veth peer name {name} netns {pid}\n"
            lines += f"link set q{n} master {SECOND} up\n"
        self._in_switch(lines)

    def in_network(self, host: str, line: str) -> None:
        """Runs a shell line with the host's network and this machine's files: a host's /proc/sys is not for writing."""
        enter = ["nsenter", f"--net=/proc/{self.lab.hosts[host]['pid']}/ns/net", "sh", "-c", line]
        subprocess.run(enter, check=True, capture_output=True, timeout=60)

    def unwire(self) -> None:
        self._in_switch("".join(f"link del q{n}\n" for n in range(len(self.names))) + f"link del {SECOND}\n", False)
