"""Files for a Slurm of one's own, of hosts and their facts."""

from __future__ import annotations

from fleet.slurmconf import SlurmNode, gres_conf, node_of, slurm_conf


def test_a_node_of_a_hosts_facts() -> None:
    facts = {"memory": {"total": 100 << 30}, "cpu": {"count": 64}, "gpus": [{"index": 0}, {"index": 1}]}
    assert node_of("a1", "10.0.0.1", facts) == SlurmNode("a1", 64, 100352, ("/dev/nvidia0", "/dev/nvidia1"), "10.0.0.1")
    facts["gpus"] = [{"index": 0, "minor": 0}, {"index": 1, "minor": 2}]  # the one between has failed
    assert node_of("a1", "a1", facts).gpus == ("/dev/nvidia0", "/dev/nvidia2")
    assert node_of("a1", "a1", {}) == SlurmNode("a1", 1, 1)
    named = node_of("a1", "10.0.0.1", {"hostname": "node7.lan"})
    text = slurm_conf([named], cluster="c", partition="p")
    assert "SlurmctldHost=node7(10.0.0.1)\n" in text and "NodeName=a1 NodeHostname=node7 NodeAddr=10.0.0.1 " in text
    assert node_of("a1", "a1", {"hostname": "x\nSlurmUser=root"}).hostname is None


def test_files_of_slurms() -> None:
    nodes = [SlurmNode("a1", 8, 64000, ("/dev/nvidia0", "/dev/nvidia1"), "10.0.0.1"), SlurmNode("a2", 4, 32000)]
    text = slurm_conf(nodes, cluster="c", partition="gpu")
    assert "SlurmctldHost=a1(10.0.0.1)\n" in text and "SlurmUser=slurm\n" in text
    assert "NodeName=a1 NodeAddr=10.0.0.1 CPUs=8 RealMemory=64000 Gres=gpu:2 State=UNKNOWN\n" in text
    assert "NodeName=a2 CPUs=4 RealMemory=32000 State=UNKNOWN\n" in text
    assert text.endswith("PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
    assert gres_conf(nodes).splitlines()[1:] == [
        "NodeName=a1 Name=gpu File=/dev/nvidia0",
        "NodeName=a1 Name=gpu File=/dev/nvidia1",
    ]
