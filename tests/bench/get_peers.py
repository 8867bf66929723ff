"""Table of `fleet get`: files of nodes on the head, for the first time and once more, beside rsync."""

from __future__ import annotations

import shlex
import shutil

from tests.bench.fleet_lab import FLEET, BenchLab
from tests.bench.harness import Contestant, Done, command

AIMS = {"rsync": 1.3}
SMALL, LARGE = "20000 small files of one node", "200 MB of each of 4 nodes"
CASES = [(kind, state) for kind in (SMALL, LARGE) for state in ("cold", "warm")]


def make_files(lab: BenchLab) -> None:
    small = "mkdir -p small && cd small && for d in $(seq 200); do mkdir -p d$d; done; "
    small += (
        'seq 20000 | awk \'{f = "d" ($1 % 200 + 1) "/f" $1; for (i = 0; i < 20; i++) print "value", $1 > f; close(f)}\''
    )
    large = "mkdir -p ~/large && head -c 200000000 /dev/urandom > ~/large/weights.bin; "
    lab.fleet("exec", "--shell", large + small)


def contestants(lab: BenchLab, case: tuple[str, str]) -> tuple[Contestant, list[Contestant]]:
    """(fleet, peers); each has a folder of its own on the head, filled before unless the case is "cold"."""
    kind, state = case
    names, what = (lab.names[:1], "small") if kind == SMALL else (lab.names, "large")
    config = shlex.quote(str(lab.ssh_config))

    def contestant(name: str, tool: str | None, line: str) -> Contestant:
        to = lab.home / f"got-{name}"
        shutil.rmtree(to, ignore_errors=True)
        run = command(["bash", "-c", line.format(tool=tool, to=to)], lab.env, str(lab.home))
        if tool and state == "warm":
            run()

        def check(done: Done) -> str | None:
            found = sum(1 for path in to.rglob("*") if path.is_file())
            if state == "cold":
                shutil.rmtree(to)
            expected = 20000 if kind == SMALL else len(names)
            return None if found == expected and not done.status else f"{found} files; {done.output[-300:]!r}"

        return Contestant(name, run, check, None if tool else "not installed")

    get = f"{{tool}} -i lab get -w {','.join(names)} ~/{what} --to {{to}}"
    pull = 'mkdir -p {{to}}/{name}; rsync -a -e "ssh -F {config}" {name}:{what} {{to}}/{name}/ & p="$p $!"\n'
    loop = "".join(pull.format(name=name, what=what, config=config) for name in names)
    rsync = contestant("rsync", shutil.which("rsync"), loop + "for one in $p; do wait $one || exit 1; done")
    return contestant("fleet", FLEET, get.replace("~", "\\~")), [rsync]
