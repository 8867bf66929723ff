"""The hang that notes tell of: hosts with two networks, of which one lets nothing through, and names that mean it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.nets import Net
from tests.node.nodes import until

TRAINS = """
import torch
import torch.distributed as dist
print("meets", flush=True)
dist.init_process_group("gloo")
data = torch.ones(4)
dist.all_reduce(data)
print("trained", int(data[0]), flush=True)
dist.destroy_process_group()
"""
BY_HAND = (
    "cd /root/two; {python} -m torch.distributed.run --nnodes 2 --node-rank {rank} --nproc-per-node 1 "
    "--master-addr {at} --master-port 29741 train.py > log 2>&1 & echo $! > /root/two/pid"
)


@pytest.mark.slow
@pytest.mark.real
def test_plain_torchrun_hangs_and_launch_trains_with_nothing_set(breakable: BreakableLab, tmp_path: Path) -> None:
    net, names = Net(breakable.enrol()), breakable.names[:2]
    for name in names:
        breakable.spoil(name)
    net.wire(["eth1", "eth1"])
    try:
        for n, name in enumerate(names):
            net.lab.inside(name, "sh", "-c", "mkdir /root/two && cat > /root/two/train.py", stdin=TRAINS.encode())
            net.lab.sh(name, f"ip addr add 10.99.0.{n + 1}/24 dev eth1; ip link set eth1 up")
            net.lab.sh(
                name,
                f'echo "10.99.0.{n + 1} $(hostname)" > /tmp/new; cat /etc/hosts >> /tmp/new; cp /tmp/new /etc/hosts',
            )
            net.filters(n, "input", "iifname eth1 drop")
        for rank, name in enumerate(names):
            net.lab.sh(name, BY_HAND.format(python=sys.executable, rank=rank, at=net.ips[0]))

        def said() -> list[str]:
            time.sleep(1)
            return [net.lab.sh(name, "cat /root/two/log") for name in names]

        until(lambda: all("meets" in log for log in said()), 300)
        time.sleep(20)
        assert not any("trained" in log or "Error" in log for log in said()), said()
        for name in names:
            net.lab.sh(name, "kill -TERM $(cat /root/two/pid)")

        hosts = "".join(
            f"  {name}: {{address: {net.ips[n]}, python: {sys.executable}}}\n" for n, name in enumerate(names)
        )
        (tmp_path / "fleet.yaml").write_text(f"hosts:\n{hosts}")
        done = net.lab.fleet(
            "launch", "--workdir", "/root/two", "--nproc-per-node", "1", "train.py", cwd=tmp_path, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("trained 2") == 2
    finally:
        net.opens()
        net.unwire()
