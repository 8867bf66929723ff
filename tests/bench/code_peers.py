"""Table 4: a tree of many small files to 16 nodes: for the first time, with one file changed, with nothing changed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.bench.exec_peers import PYINFRA
from tests.bench.fleet_lab import BIN, FLEET, BenchLab
from tests.bench.harness import Contestant, Done, command

AIMS = {"rsync in a loop": 1.0, "ansible synchronize": 1.0, "pyinfra files.rsync": 1.0}
CASES = ("cold", "one file changed", "nothing changed")
ANSIBLE = [BIN.parent / "peers/bin/ansible", BIN / "ansible"]


def make_tree(lab: BenchLab, files: int) -> Path:
    """Folders of 100 files of about 300 bytes."""
    tree = lab.home / "tree"
    for number in range(files):
        folder = tree / f"d{number // 100}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}.py").write_text(f"value = {number}\n" * 20)
    return tree


def contestants(lab: BenchLab, tree: Path, case: str) -> tuple[Contestant, list[Contestant]]:
    """(fleet, peers); each has a folder of its own on the nodes, filled before unless the case is "cold"."""
    config = shlex.quote(str(lab.ssh_config))
    changed = tree / "d0" / "f0.py"
    files = sum(1 for path in tree.rglob("*") if path.is_file())

    def contestant(name: str, tool: str | Path | None, line: str) -> Contestant:
        dest = f"/root/{name.split()[0]}"
        text = line.format(tool=tool, tree=shlex.quote(str(tree)), dest=dest, config=config)
        if tool and case != "cold":
            command(["bash", "-c", text], lab.env)()
        before = f"date +%N > {shlex.quote(str(changed))}\n" if case == "one file changed" else ""
        check = arrived(lab, dest, files, changed, case)
        run = command(["bash", "-c", before + text], lab.env)
        return Contestant(name, run, check, None if tool else "not installed")

    inventory = lab.home / "ansible.ini"
    inventory.write_text(
        "".join(
            f"{name} ansible_host={address} ansible_user=root ansible_python_interpreter=/usr/bin/python3\n"
            for name, address in lab.addresses.items()
        )
    )
    deploy = lab.home / "deploy.py"
    deploy.write_text(
        "from pyinfra import host\nfrom pyinfra.operations import files\n"
        f"files.rsync(src={str(tree) + '/'!r}, dest=host.data.dest, flags=['-a', '--delete'])\n"
    )
    hosts = lab.home / "pyinfra_code.py"
    data = {
        "ssh_user": "root",
        "ssh_key": str(lab.key),
        "ssh_config_file": str(lab.ssh_config),
        "dest": "/root/pyinfra",
        "ssh_known_hosts_file": str(lab.known_hosts),
        "ssh_strict_host_key_checking": "yes",
    }
    entries = [(name, {"ssh_hostname": address, **data}) for name, address in lab.addresses.items()]
    hosts.write_text(f"hosts = {entries!r}\n")
    line = 'rsync -a --delete -e "ssh -F {{config}}" {{tree}}/ {name}:{{dest}}/ & p="$p $!"\n'
    loop = "".join(line.format(name=name) for name in lab.names)
    return contestant("fleet", FLEET, "{tool} -i lab sync {tree} --to {dest}"), [
        contestant("rsync in a loop", shutil.which("rsync"), loop + "for one in $p; do wait $one || exit 1; done"),
        contestant(
            "ansible synchronize",
            next(filter(Path.exists, ANSIBLE), None),
            f"ANSIBLE_SSH_ARGS='-F {config}' {{tool}} all -i {shlex.quote(str(inventory))} -f 16 "
            "-m ansible.posix.synchronize -a 'src={tree}/ dest={dest}/ delete=yes use_ssh_args=yes'",
        ),
        contestant(
            "pyinfra files.rsync",
            next(filter(Path.exists, PYINFRA), None),
            f"{{tool}} -y {shlex.quote(str(hosts))} {shlex.quote(str(deploy))}",
        ),
    ]


def arrived(lab: BenchLab, dest: str, files: int, changed: Path, case: str) -> Callable[[Done], str | None]:
    """Every node has as many files, and the changed one as it is; after a cold run they are removed again."""

    def check(done: Done) -> str | None:
        clean = f"; rm -rf {dest} /root/.*.fleet-sync" if case == "cold" else ""
        said = lab.fleet("exec", "--shell", f"find {dest} -type f | wc -l; cat {dest}/d0/f0.py{clean}; true")
        right = said.count(f"{files}\n{changed.read_text()}") == 1 and f"({len(lab.names)})" in said
        if done.status or not right:
            return f"exit status {done.status}: {done.output[-300:]!r}, {said[:100]!r}"
        return None

    return check
