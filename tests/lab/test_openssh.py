"""Every verb that reaches hosts, by the system's ssh, and by pdsh, which starts that."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.lab.test_launch import until
from tests.lab.virtual_lab import VirtualLab


def connections(lab: VirtualLab) -> list[str]:
    """Processes of ssh that belong to this head, by their config."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"HOME={lab.home}".encode() in (path / "environ").read_bytes().split(b"\0")
            if mine and (path / "comm").read_text() == "ssh\n":
                found.append(path.name)
        except OSError:
            pass
    return found


@pytest.mark.parametrize("kind", ["openssh", pytest.param("pdsh", marks=pytest.mark.slow)])
def test_every_verb(ready_lab: VirtualLab, tmp_path: Path, kind: str) -> None:
    lab = ready_lab.first(2)
    over = ("-i", "lab", "-w", ",".join(lab.names), "--transport", kind)
    done = lab.fleet(*over, "--json", "exec", "--", "hostname", check=True)
    assert {n: h["stdout"].strip() for n, h in json.loads(done.stdout)["hosts"].items()} == {n: n for n in lab.names}
    done = lab.fleet(*over, "exec", "--shell", "kill -9 $$")
    assert done.returncode == 137
    (tmp_path / "rank.py").write_text(
        "import os, sys; print('rank', os.environ['RANK'], flush=True); os.write(2, bytes(range(256)))\n"
    )
    lab.fleet(*over, "sync", str(tmp_path), "--to", f"/root/{kind}", check=True)
    (tmp_path / "big").write_bytes(b"weights" * 999_999)
    lab.fleet(*over, "sync", "--data", f"{tmp_path}/big:/root/{kind}-data/", check=True)
    for host in lab.names:
        assert lab.sh(host, f"ls /root/{kind}; stat -c %s /root/{kind}-data/big").split() == ["rank.py", "6999993"]
    lab.fleet(*over, "check", check=True)
    launch = ("launch", "--engine", "command", "--workdir", f"/root/{kind}", "--no-preflight", "python3", "rank.py")
    done = lab.fleet(*over, *launch, cwd=tmp_path, check=True)
    assert all(f"rank {rank}" in done.stdout for rank in range(2)), done.stdout
    assert {log.read_bytes() for log in (tmp_path / "runs").rglob("rank*.err")} == {bytes(range(256))}
    lab.inside(lab.names[0], "sh", "-c", "setsid python3 -m http.server 8123 >/dev/null 2>&1 &")
    lab.sh(lab.names[0], "until grep -q ':1FBB 00000000' /proc/net/tcp; do sleep 0.1; done")
    done = lab.fleet(*over, "kill-port", "8123", "--yes", check=True)
    assert lab.names[0] in done.stdout
    done = lab.fleet(*over, "setup-ssh")
    assert done.returncode == 2 and f"cannot go over --transport {kind}" in done.stderr
    until(lambda: connections(lab) == [])


@pytest.mark.parametrize("kind", ["openssh", pytest.param("pdsh", marks=pytest.mark.slow)])
def test_ctrl_c_leaves_no_connection(ready_lab: VirtualLab, kind: str) -> None:
    lab = ready_lab
    process = lab.popen("-i", "lab", "--transport", kind, "exec", "--", "sleep", "1000")
    deadline = time.monotonic() + 300
    while len(connections(lab)) < 2 * len(lab.names):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    until(lambda: connections(lab) == [])
