"""-w and -x: node sets, groups, patterns and DeepSpeed's device filters."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from fleet.errors import InventoryError, UsageError
from fleet.inventory.find import parse
from fleet.inventory.select import host_named, select
from tests.in_process import typed

FLEET = """\
hosts:
  b: {slots: 4}
  gpu[3,1-2]: {slots: 4}
  cpu: {}
  part: {devices: [2, 3, 5]}
  fe80::1: {slots: 2}
  fe80::1:0: {slots: 2}
  z10: {slots: 8}
groups: {gpus: "gpu[1-3]", one: gpu1, mixed: "@one,b"}
"""


@pytest.fixture(scope="module")
def fleet():
    return parse(FLEET.encode(), "fleet.yaml")


def said(inventory):
    """host or host:devices, in order."""
    return " ".join(
        h.name if h.devices is None else f"{h.name}:{','.join(map(str, h.devices))}" for h in inventory.hosts
    )


ALL = "b gpu3 gpu1 gpu2 cpu part:2,3,5 fe80::1 fe80::1:0 z10"


@pytest.mark.parametrize(
    ("hosts", "exclude", "left"),
    [
        (None, None, ALL),
        ("gpu[1-3],b", None, "b gpu3 gpu1 gpu2"),  # the inventory's order, not the sorted one
        ("z10, b", None, "b z10"),
        ("@gpus", None, "gpu3 gpu1 gpu2"),
        ("@mixed", None, "b gpu1"),
        ("@all", None, ALL),
        ("@gpus!gpu2", None, "gpu3 gpu1"),
        ("@gpus&gpu[1-2]", None, "gpu1 gpu2"),
        ("@gpus^gpu1,b", None, "b gpu3 gpu2"),
        ("gpu*", None, "gpu3 gpu1 gpu2"),
        ("?", None, "b"),
        (None, "@gpus,fe80*,part", "b cpu z10"),
        ("@gpus", "@one", "gpu3 gpu2"),
        # DeepSpeed's separator and devices
        ("gpu1@gpu2:0,2", None, "gpu1 gpu2:0,2"),
        ("gpu2:0,2@gpu1", None, "gpu1 gpu2:0,2"),
        ("gpu2:0,2,gpu1", None, "gpu1 gpu2:0,2"),
        ("gpu1@@one@b:3", None, "b:3 gpu1"),
        ("gpu1,@one", None, "gpu1"),
        ("@gpus:1-3", None, "gpu3:1,2,3 gpu1:1,2,3 gpu2:1,2,3"),
        ("gpu[1-2]:0", None, "gpu1:0 gpu2:0"),
        ("gpu1:0@gpu1:2", None, "gpu1:0,2"),
        ("gpu1:1,1", None, "gpu1:1"),
        ("gpu1:0-2,1", None, "gpu1:0,1,2"),
        ("gpu1:2,0", None, "gpu1:0,2"),
        ("gpu1:0,gpu1", None, "gpu1"),
        ("gpu1:0,b!b", None, "gpu1:0"),
        ("cpu:0,1", None, "cpu:0,1"),
        ("part:5", None, "part:5"),
        (None, "gpu2:1@@one,b,cpu,fe80*", "gpu3 gpu2:0,2,3 part:2,3,5 z10"),
        ("part", "part:3", "part:2,5"),
        ("gpu1@gpu2", "gpu2:0-3", "gpu1"),
        ("gpu2:0,1@b", "gpu2:1,3", "b gpu2:0"),
        # a name with colons wins over devices
        ("fe80::1", None, "fe80::1"),
        ("fe80::1:0", None, "fe80::1:0"),
        ("fe80::1:1", None, "fe80::1:1"),
        ("fe80::1:0:1", None, "fe80::1:0:1"),
    ],
)
def test_selections(fleet, hosts, exclude, left):
    chosen = select(fleet, hosts, exclude)
    assert said(chosen) == left
    assert all(h.slots == len(h.devices) for h in chosen.hosts if h.devices is not None)
    assert {h.name for h in (*chosen.hosts, *chosen.unselected)} == set(fleet.names)


@pytest.mark.parametrize(
    ("hosts", "exclude", "message", "hint"),
    [
        ("gpu9", None, "no host 'gpu9'", "did you mean 'gpu"),
        ("gpu[1-4]", None, "no host 'gpu4'", "did you mean"),
        ("gpus", None, "no host 'gpus'", "did you mean '@gpus'?"),
        (None, "nosuch", "no host 'nosuch'", "fleet hosts"),
        ("@gpu", None, "no group '@gpu'", "did you mean '@gpus'?"),
        ("@", None, "missing", ""),
        ("x*", None, "no host matches", ""),
        ("gpu1:4", None, "no device 4", "0,1,2,3"),
        ("part:0", None, "no device 0", "2,3,5"),
        (None, "gpu2:7", "no device 7", ""),
        (None, "cpu:0", "does not say how many", "slots"),
        ("gpu1&gpu2", None, "leaves no host", ""),
        (None, "@all", "leaves no host", ""),
        ("gpu1", "gpu1:0-3", "leaves no host", ""),
        ("@gpus&gpu1:0", None, "after '&'", "-x"),
        ("!gpu1", None, "missing", "-x"),
        ("", None, "missing", ""),
        ("gpu1,", None, "missing", ""),
        ("gpu1@", None, "missing", ""),
        ("gpu1,,b", None, "missing", ""),
        ("gpu1 b", None, "not understood", "','"),
        ("gpu1:", None, "no host 'gpu1:'", ""),
        ("gpu1:1-0", None, "backwards", ""),
        ("gpu1:2222", None, "2222 looks like a port", "gpu1 port=2222"),
        ("cpu:22", None, "22 looks like a port", "cpu port=22"),
        ("root@gpu1", None, "no host 'root'", "-w gpu1; its user is in the inventory, user=root"),
        ("root@10.0.0.1:33", None, "no host 'root'", "10.0.0.1 user=root port=33"),
        ("-gpu1", None, "'-gpu1' is not a host name", "-x gpu1"),
        ("gpu[1-3],-gpu2", None, "'-gpu2'", "-w 'gpu[1-3]' -x gpu2"),
        (None, "-gpu1", "'-gpu1'", "-x gpu1"),
        ("^hosts.txt", None, "'^hosts.txt' is not a host name", ""),  # a file is read for a command line alone
        ("@failed", None, "no group '@failed'", ""),
        ("gpu[01-03]", None, "no host 'gpu01'", "did you mean 'gpu[1-3]'?"),
        ("gpu[01-03],b", None, "no host 'gpu01'", "did you mean 'gpu[1-3]'?"),
        ("gpu02", None, "no host 'gpu02'", "did you mean 'gpu2'?"),
        ("gpu[02-04]", None, "no host 'gpu02'", "did you mean 'gpu2'?"),  # there is no gpu4
        ("z010", None, "no host 'z010'", "did you mean 'z10'?"),
        ("gpu1 gpu2", None, "not understood", "-w gpu1,gpu2"),
        ("gpu1:9999999", None, "devices", ""),
        ("gpu[1-999999999]", None, "more than", ""),
        ("gpu[1-2", None, "", ""),
        ("gpu]1", None, "not understood", ""),
        ("$(id)", None, "not a host name", ""),
    ],
)
def test_what_a_wrong_selection_is_told(fleet, hosts, exclude, message, hint):
    with pytest.raises(InventoryError) as caught:
        select(fleet, hosts, exclude)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.where == "fleet.yaml"


RENTED = """\
hosts:
  a: {address: 10.0.0.1, data_address: 192.168.0.1, slots: 4}
  b: {address: 10.0.0.2, data_address: 192.168.0.2, slots: 4}
  v1: {address: 1.2.3.4, port: 33021, data_address: "fd00::1", slots: 4}
  v2: {address: 1.2.3.4, port: 33022}
  10.0.0.9: {}
  n: {address: GPU.Example.com., data_address: 10.0.0.9}
groups: {g: "10.0.0.[1-2]", h: [192.168.0.1, "1.2.3.4:33022"]}
"""


@pytest.mark.parametrize(
    ("hosts", "exclude", "left"),
    [
        ("10.0.0.1", None, "a"),
        ("10.0.0.[1-2]", None, "a b"),
        ("192.168.0.2,a,10.0.0.1", None, "a b"),
        ("10.0.0.1:0,2@10.0.0.2", None, "a:0,2 b"),
        (None, "192.168.0.[1-2]:1-3,1.2.3.4:33021", "a:0 b:0 v2 10.0.0.9 n"),
        ("1.2.3.4:33021", None, "v1"),
        ("10.0.0.1:22", None, "a"),  # as ssh has it without a port
        ("fd00::1", None, "v1"),
        ("fd00::1:0,1", None, "v1:0,1"),
        ("FD00:0::1", None, "v1"),
        ("fd00:0::1:2", None, "v1:2"),
        ("10.0.0.9", None, "10.0.0.9"),  # a name wins
        ("gpu.example.com", None, "n"),
        ("@g", None, "a b"),
        ("@h", None, "a v2"),
    ],
)
def test_addresses_stand_for_hosts(hosts, exclude, left):
    assert said(select(parse(RENTED.encode(), "f.yaml"), hosts, exclude)) == left


@pytest.mark.parametrize(
    ("hosts", "message", "hint"),
    [
        ("1.2.3.4", "'1.2.3.4' is the address of 2 hosts", "say which: v1, v2"),
        ("1.2.3.4:0", "'1.2.3.4' is the address of 2 hosts", "say which: v1, v2"),
        ("10.0.0.7", "no host '10.0.0.7'", ""),
        ("fd00::7", "no host 'fd00::7'", ""),
        ("root@10.0.0.1", "no host 'root'", "-w 10.0.0.1; its user is in the inventory, user=root"),
        ("root@1.2.3.4:33022", "no host 'root'", "-w 1.2.3.4:33022; its user is in the inventory"),
    ],
)
def test_addresses_that_stand_for_no_one_host(hosts, message, hint):
    with pytest.raises(InventoryError) as caught:
        select(parse(RENTED.encode(), "f.yaml"), hosts, None)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


LOGINS = """\
hosts:
  a: {address: 10.0.0.1, user: root}
  b: {slots: 2, user: root}
  c: {address: 1.2.3.4, port: 2222, user: me}
  d: {}
"""


@pytest.mark.parametrize(
    ("hosts", "left"),
    [
        ("root@a", "a"),
        ("root@10.0.0.1,d", "a d"),
        ("root@10.0.0.1@b:0", "a b:0"),
        ("me@1.2.3.4:2222@root@a", "a c"),
        ("me@1.2.3.4", "c"),
    ],
)
def test_a_log_in_stands_for_the_host_with_that_user(hosts, left):
    assert said(select(parse(LOGINS.encode(), "f.yaml"), hosts, None)) == left


def test_a_log_in_is_no_other_users_and_a_host_may_be_called_root():
    for wrong in ("me@a", "root@d", "root@c"):
        with pytest.raises(InventoryError, match="no host '(me|root)'"):
            select(parse(LOGINS.encode(), "f.yaml"), wrong, None)
    assert said(select(parse(LOGINS.encode() + b"  root: {}\n", "f.yaml"), "root@d", None)) == "d root"


def test_an_option_that_takes_one_host():
    inventory = parse(RENTED.encode(), "f.yaml")
    assert host_named(inventory, "--on", "192.168.0.2").name == "b"
    for word, message in {"1.2.3.4": "the address of 2 hosts", "a,b": "no host 'a,b'", "": "no host ''"}.items():
        with pytest.raises(UsageError, match=f"--on: .*{message}"):
            host_named(inventory, "--on", word)


@pytest.mark.parametrize(
    "line",
    [
        "ssh nix",
        "sync --data x --from nix",
        "get a/b --from nix",
        "logs latest --host nix",
        "setup-ssh --replace-key nix",
    ],
)
def test_a_wrong_selection_is_told_by_the_option_that_had_it(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("gpu1\n")
    assert typed(line.split()) == 121
    option = {"ssh": "HOST"}.get(line.split()[0], line.split()[-2])
    assert f"error: hostfile: {option} 'nix': no host 'nix' in the inventory\n" in capsys.readouterr().err


def test_groups_keep_who_is_left(fleet):
    assert select(fleet, "gpu1,b", None).groups == {"gpus": ("gpu1",), "one": ("gpu1",), "mixed": ("b", "gpu1")}


def test_a_selection_of_a_selection(fleet):
    twice = select(select(fleet, "@gpus", None), "gpu1", None)
    assert said(twice) == "gpu1"
    assert {h.name for h in twice.unselected} == set(fleet.names) - {"gpu1"}


def test_numbers_of_the_name_do_not_sort_it():
    assert select(parse(b"n10\nn9\nn1\n", "f"), "n1,n9,n10", None).names == ("n10", "n9", "n1")


def test_no_group_config_of_clustershell_is_ever_asked(tmp_path):
    """A groups.conf whose upcalls would leave a file behind: nothing runs, whatever the selection."""
    trap = tmp_path / "trap"
    upcall = tmp_path / "upcall"
    upcall.write_text(f"#!/bin/sh\ntouch {trap}\necho gpu1\n")
    upcall.chmod(upcall.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "groups.conf").write_text(
        f"[Main]\ndefault: evil\n[evil]\nmap: {upcall}\nall: {upcall}\nlist: {upcall}\nreverse: {upcall}\n"
    )
    (tmp_path / "f.yaml").write_text("hosts: 'gpu[1-3]'\ngroups: {g: 'gpu[1-2]'}")
    program = f"""if True:
        import builtins
        import fleet.cli.main
        opened, real = [], builtins.open
        builtins.open = lambda name, *a, **k: opened.append(str(name)) or real(name, *a, **k)
        for text in ("@g", "@all", "@evil", "@evil:x", "@*", "@@evil", "gpu*", "gpu1", "@g!gpu1"):
            fleet.cli.main.run(["-i", "{tmp_path}/f.yaml", "hosts", "--format", "nodeset", "-w", text])
        assert not [name for name in opened if "groups" in name], opened
    """
    environ = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path)}
    # the trap itself works: ClusterShell left to its defaults walks into it
    subprocess.run(
        [sys.executable, "-c", "from ClusterShell.NodeSet import NodeSet; NodeSet('@x')"],
        env=environ,
        check=True,
        timeout=300,
    )
    assert trap.exists()
    trap.unlink()
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "gpu[1-2]" in done.stdout, done.stderr
    assert not trap.exists()
