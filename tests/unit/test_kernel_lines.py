"""Lines of the kernel's log, as kernels write them: what they mean, and which of them a node sends."""

from __future__ import annotations

import re

import pytest

from fleet.node.run.start.kernel_log import MAX_LENGTH, WORTH, pid_in
from fleet.rules.hint import first_match
from fleet.rules.kernel import KERNEL

OOM = (
    "Out of memory: Killed process 28892 (python3) total-vm:221384kB, anon-rss:72192kB, file-rss:6608kB, "
    "shmem-rss:0kB, UID:0 pgtables:208kB oom_score_adj:0"
)


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


SEGFAULT = (
    "python3[9306]: segfault at 8 ip 000000000050ed24 sp 00007ffd781de8b0 error 4 in libtorch_cpu.so[10ed24,41f000+2b3]"
    " likely on CPU 1 (core 1, socket 0)"
)


LINES = [
    (OOM, "out of memory: the kernel killed python3", False),
    ("Memory cgroup o" + OOM[1:], "python3, the limit of its cgroup was reached", False),
    ("Killed process 4242, UID 1000, (python) total-vm:70kB, anon-rss:6kB", "the kernel killed python", False),
    ("oom_kill 2 in memory.events of the cgroup", "the limit of its cgroup was reached", False),
    (XID, "a GPU has fallen off the bus (Xid 79)", True),
    ("NVRM: GPU at PCI:0000:3b:00: GPU-1: GPU has fallen off the bus.", "fallen off the bus", True),
    (
        "NVRM: Xid (PCI:0000:1b:00): 94, pid=77, name=python3, Ch 8",
        "GPU at PCI:0000:1b:00 has memory errors (Xid 94)",
        False,
    ),
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=77, name=python3, Ch 8",
        "GPU at PCI:0000:01:00 GPU-I:05 has memory errors (Xid 94)",
        False,
    ),
    ("NVRM: Xid (PCI:0000:1b:00): 63, pid=7, Row Remapper: New row marked", "memory errors (Xid 63)", False),
    ("NVRM: Xid (PCI:0000:1b:00): 92, pid=7, High single-bit ECC error rate", "memory errors (Xid 92)", False),
    ("NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)", None, False),
    ("NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1", "failed (Xid 154)", True),
    ("NVRM: Xid (PCI:0000:1b:00): 48, pid=77, An uncorrectable double bit error", "memory errors (Xid 48)", True),
    ("NVRM: Xid (PCI:0000:81:00): 119, pid=9, Timeout waiting for RPC from GSP", "failed (Xid 119)", True),
    ("NVRM: Xid (PCI:0000:81:00): 31, pid=9, name=python, MMU Fault", "a program made an error on the GPU", False),
    ("nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 20034, Fatal, Link 30", "NVSwitch failed", True),
    ("amdgpu 0000:03:00.0: amdgpu: GPU reset begin!", "an AMD GPU failed (reset)", True),
    ("mce: [Hardware Error]: Machine check events logged", "hardware reports an error", True),
    ("{1}[Hardware Error]: event severity: corrected", None, False),
    (SEGFAULT, "a crash in native code, in libtorch_cpu.so", False),
    ("traps: pt_main_thread[77] general protection fault ip:7f sp:7f error:0 in libc.so.6[2+1]", "in libc.so.6", False),
    ("EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2: reading directory", "a disk there fails", True),
    ("blk_update_request: I/O error, dev sda, sector 5 op 0x0:(READ)", "a disk there fails", True),
    ("nfs: server nas1 not responding, still trying", "the file server nas1 did not answer", False),
]


@pytest.mark.parametrize(("line", "meaning", "broken"), LINES)
def test_what_a_line_means(line: str, meaning: str | None, broken: bool) -> None:
    rule = first_match(KERNEL, line)
    assert (rule is not None) == (meaning is not None)
    if rule is not None and meaning is not None:
        assert meaning in rule.meaning and rule.unfit == broken
        assert "{host}" not in rule.remedy.format(host="a")
        assert line.startswith("oom_kill") or re.search(WORTH, line), "the node does not send it"


def test_every_rule_has_a_line() -> None:
    assert {rule.pattern for rule in KERNEL} == {
        rule.pattern for line, _, _ in LINES if (rule := first_match(KERNEL, line))
    }


@pytest.mark.parametrize("line", ["usb 1-1: new device", "python3 invoked oom-killer: gfp_mask=0xcc0", "eth0: link up"])
def test_what_is_no_cause_is_not_sent(line: str) -> None:
    assert not re.search(WORTH, line)


def test_the_process_that_a_line_names() -> None:
    assert (pid_in(OOM), pid_in(SEGFAULT), pid_in("NVRM: Xid (PCI:0000:1b:00): 31, pid=77, name=x")) == (
        28892,
        9306,
        77,
    )
    assert pid_in("nothing") == 0 and len(OOM) < MAX_LENGTH
