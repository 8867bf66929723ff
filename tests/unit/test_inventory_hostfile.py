"""Hostfiles of four dialects, and finding the file."""

from __future__ import annotations

import pytest

from fleet.errors import InventoryError
from fleet.inventory.find import find_inventory, load, parse
from fleet.inventory.hostfile import parse_hostfile
from tests.in_process import typed


def hostfile(text):
    return parse_hostfile(text, "hostfile")


@pytest.mark.parametrize(
    ("line", "slots"),
    [
        ("gpu1 slots=8", 8),  # DeepSpeed
        ("gpu1\tslots=8   # the big one", 8),
        ("gpu1 slots=8 max_slots=16", 8),  # Open MPI
        ("gpu1 max-slots=8 slots=8", 8),
        ("gpu1 max-slots=8", None),
        ("gpu1:8", 8),  # MPICH
        ("  gpu1  ", None),  # Colossal-AI
        ("gpu1 # slots=3", None),
    ],
)
def test_the_dialects(line, slots):
    (host,) = hostfile(f"# a comment\n\n{line}\n").hosts
    assert (host.name, host.address, host.slots) == ("gpu1", "gpu1", slots)


def test_all_fields_and_quoting(tmp_path, capsys):
    text = """g[2,1]:4 user=root
h slots=8 address=10.0.0.1 port=33 data_address=fd00::1 identity_file="~/my keys/id" proxy_jump=u@j:22,k \
python=/opt/py#3 activate="source \\"/x\\" # not a comment" workdir='/a b' devices=0-7 env=A=1 env=B="x = y" env=C=
"""
    inventory = hostfile(text)
    assert inventory.names == ("g2", "g1", "h")
    assert inventory.host("g1").slots == 4
    h = inventory.host("h")
    assert (h.address, h.port, h.data_address, h.slots) == ("10.0.0.1", 33, "fd00::1", 8)
    assert (h.identity_file, h.proxy_jump, h.python) == ("~/my keys/id", "u@j:22,k", "/opt/py#3")
    assert (h.activate, h.workdir, h.devices) == ('source "/x" # not a comment', "/a b", tuple(range(8)))
    assert h.env == {"A": "1", "B": "x = y", "C": ""}
    (tmp_path / "f").write_text(text.splitlines()[1])
    assert typed(["-i", str(tmp_path / "f"), "hosts", "--format", "deepspeed"]) == 0
    assert hostfile(capsys.readouterr().out).hosts == (h,)


def test_ipv6_in_mpich_form():
    assert hostfile("fd00::1:8").hosts[0].slots is None  # an address is read whole
    host = hostfile("[fd00::1]:8").hosts[0]
    assert (host.name, host.address, host.slots) == ("fd00::1", "fd00::1", 8)


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("root@gpu1", {}),
        ("root@gpu1:33 slots=8", {"port": 33, "slots": 8}),
        ("ssh://root@gpu1:33/", {"port": 33}),
        ("ssh root@gpu1 -p 33", {"port": 33}),
        ("ssh -p33 root@gpu1  # rented", {"port": 33}),
        ("ssh -l root gpu1 -oPort=33 -o 'HostName 10.0.0.1'", {"port": 33, "address": "10.0.0.1"}),
        ("ssh -oport=33 root@gpu1 -i '~/a key' -J bastion", {"port": 33, "identity_file": "~/a key"}),
        ("""ssh root@gpu1 -p 33 slots=8 activate="source 'a b'\"""", {"port": 33, "activate": "source 'a b'"}),
    ],
)
def test_what_ssh_is_told_names_a_host(line, fields):
    (host,) = hostfile(line).hosts
    assert (host.name, host.user, host.address) == ("gpu1", "root", fields.get("address", "gpu1"))
    assert {key: getattr(host, key) for key in fields} == fields
    assert host.proxy_jump == ("bastion" if "-J" in line else None)


def test_one_address_on_several_ports_is_several_hosts():
    text = "ssh root@1.2.3.4 -p 33021\nroot@1.2.3.4\nroot@5.6.7.8:33\nroot@[fd00::1]:33\n"
    inventory = hostfile(text)
    assert inventory.names == ("1.2.3.4-33021", "1.2.3.4-22", "5.6.7.8", "fd00::1")
    assert [(host.address, host.port) for host in inventory.hosts[:2]] == [("1.2.3.4", 33021), ("1.2.3.4", None)]


def test_ssh_takes_an_ipv6_address_as_it_is():
    text = "ssh root@fd00::1 -p 33\nssh -p 34 fd00::2\nssh root@[fd00::3]\n"
    found = [(host.address, host.user, host.port) for host in hostfile(text).hosts]
    assert found == [("fd00::1", "root", 33), ("fd00::2", None, 34), ("fd00::3", "root", None)]


def test_a_host_may_be_called_ssh():
    assert hostfile("ssh slots=8\n").names == hostfile("ssh\n").names == ("ssh",)


def test_a_log_in_stands_for_several_hosts():
    assert [(h.name, h.user) for h in hostfile("root@g[1-2]").hosts] == [("g1", "root"), ("g2", "root")]


WRONG = [
    ("gpu1:2222", 1, "2222 looks like a port", "gpu1 port=2222; if these are slots: gpu1 slots=2222"),
    ("a\n[fd00::1]:22", 2, "22 looks like a port", "fd00::1 port=22"),
    ("[::1]:22", 1, "22 looks like a port", "NAME address=::1 port=22; if these are slots: NAME address=::1 slots=22"),
    ("root@10.0.0.1\nroot@10.0.0.1", 2, "host 10.0.0.1: is here twice", "slots"),
    ("root@10.0.0.1:99999", 1, "port: 99999 is not between", ""),
    ("root@10.0.0.1:22 port=33", 1, "port is here twice", ""),
    ("a@b@c", 1, "'a@b@c' is not a host name", "user"),
    ("-oProxyCommand=x@y", 1, "'-oProxyCommand=x' is not a user name", ""),
    ("ssh -p 22", 1, "no host follows ssh", "ssh root@10.0.0.1 -p 2222"),
    ("ssh -p 22 -oX@", 1, "no host follows ssh", "ssh root@10.0.0.1 -p 2222"),
    ("ssh h -p", 1, "option -p requires argument", ""),
    ("ssh h -z", 1, "option -z not recognized", ""),
    ("ssh -- -oX", 1, "'-oX' is not a host name", ""),
    ("ssh h -p 22 -oPort=33", 1, "port is here twice", ""),
    ("ssh root@h nvidia-smi", 1, "host h: 'nvidia-smi' is not understood", "one host on a line"),
    ("ssh root@h -i -x", 1, "'-x' would be read as an option", "./"),
    ("ssh $(id)", 1, "not a host name", ""),
    ("ssh root@h -p 33 -L 80:a:80", 1, "'-L 80:a:80' does not describe a host", "leave it out: h user=root port=33"),
    ("ssh -oProxyCommand=x h", 1, "'-o ProxyCommand=x' does not describe a host", "leave it out: h"),
    ("ssh -tt -oStrictHostKeyChecking=no h", 1, "'-t -t -o StrictHostKeyChecking=no'", "leave it out: h"),
    ("-foo10", 1, "'-foo10' is not a host name", "-x foo10"),
    ("^hosts", 1, "'^hosts' is not a host name", "-i hosts"),
    ("", None, "names no hosts", ""),
    ("\n# x\n", None, "names no hosts", ""),
    ("a\nb\na\n", 3, "host a: is here twice, first on line 1", "slots"),
    ("g[1-2]\ng2 slots=4\n", 2, "host g2: is here twice, first on line 1", ""),
    ("gpu1 slot=8", 1, "unknown key 'slot'", "did you mean 'slots'?"),
    ("gpu1 adress=x", 1, "unknown key 'adress'", "did you mean 'address'?"),
    ("gpu1 8", 1, "'8' is not understood", "did you mean 'slots=8'?"),
    ("gpu1 slots = 8", 1, "'slots' is not understood", "without blanks"),
    ("gpu1 gpu2", 1, "'gpu2' is not understood", "one host on a line"),
    ("gpu1 slots=8 slots=8", 1, "slots is here twice", ""),
    ("gpu1:8 slots=8", 1, "slots is here twice", ""),
    ("gpu1 slots=eight", 1, "slots: 'eight'", ""),
    ("gpu1 slots=-1", 1, "slots: -1", ""),
    ("gpu1 slots=\u0663", 1, "slots:", ""),
    ("gpu1 slots=8 max_slots=4", 1, "more than max_slots", ""),
    ("gpu1 max_slots=4 max-slots=4", 1, "twice", ""),
    ("gpu1 max_slots=x", 1, "max_slots: 'x'", ""),
    ("gpu1:x", 1, "after ':'", "port=22"),
    ("gpu1:", 1, "after ':'", ""),
    ("::1", 1, "not a host name", "as its address"),
    ("[::1]:8", 1, "not a host name", "as its address"),
    ("[gpu1]:8", 1, "not a range", ""),
    ("slots=8", 1, "where the host's name belongs", ""),
    ("-oProxyCommand=touch", 1, "where the host's name belongs", ""),
    ("-oX", 1, "not a host name", ""),
    ("gpu1 activate='x", 1, "a quote is not closed", ""),
    ("gpu1 env=A=1 env=A=2", 1, "'A' is here twice", ""),
    ("gpu1 env=A", 1, "env: 'A' has no value", "write env=A=VALUE"),
    ("gpu1 env=1A=1", 1, "not a variable name", ""),
    ("gpu1 address=a\ngpu2 address=a\n", 2, "address and port of host gpu1 on line 1", ""),
    ("gpu[1-1000000000] slots=8", 1, "more than 100000", ""),
    ("gpu1;id slots=8", 1, "not a host name", ""),
    ("$(id)", 1, "not a host name", ""),
    ("a" * 300, 1, "longer than 253", ""),
    ("\x1b[31mgpu1 8", 1, "host \\x1b[31mgpu1: '8'", ""),
    ("a," * 200_000, 1, "nothing before or after a comma", ""),
    ("[" * 200_000, 1, "brackets do not match", ""),
    ("a[" + "1," * 200_000, 1, "before or after a comma", ""),
    ("g[1]" * 100_000, 1, "longer than 253", ""),
    ("g[1-2]" * 30, 1, "more than 100000", ""),
    ("a" + "1" * 120, 1, "more than 90 digits", ""),
]


@pytest.mark.parametrize(("text", "line", "message", "hint"), WRONG, ids=[w[0][:40] for w in WRONG])
def test_wrong_ones_say_where_why_and_what_next(text, line, message, hint):
    with pytest.raises(InventoryError) as caught:
        hostfile(text)
    assert caught.value.where == (f"hostfile:{line}" if line else "hostfile")
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_bom_and_windows_line_ends():
    assert parse(b"\xef\xbb\xbfgpu1 slots=2\r\ngpu2\r\n", "hostfile").names == ("gpu1", "gpu2")


@pytest.mark.parametrize(
    ("text", "name", "yaml"),
    [
        ("hosts: [a]\n", "x", True),
        ("---\nhosts: [a]\n", "x", True),
        ('{"hosts": ["a"]}', "x", True),
        ("# c\ndefaults:\n  port: 1\nhosts: [a]", "x", True),
        ("a:8\n", "x", False),
        ("hosts:8\n", "x", False),
        ("a slots=1\n", "x", False),
    ],
)
def test_yaml_and_hostfile_are_told_apart(text, name, yaml):
    inventory = parse(text.encode(), name)
    assert inventory.names == (("a",) if yaml or text[0] == "a" else ("hosts",))


def test_the_file_is_looked_for_in_order(tmp_path):
    environ = {"FLEET_INVENTORY": "env.yaml"}
    for name in ("given", "env.yaml", "fleet.yaml", "hostfile"):
        (tmp_path / name).write_text("a")
    assert find_inventory("given", tmp_path, environ) == tmp_path / "given"
    assert find_inventory(None, tmp_path, environ) == tmp_path / "env.yaml"
    assert find_inventory(None, tmp_path, {"FLEET_INVENTORY": ""}) == tmp_path / "fleet.yaml"
    (tmp_path / "fleet.yaml").unlink()
    assert find_inventory(None, tmp_path, {}) == tmp_path / "hostfile"


def test_nothing_found_lists_where_it_was_looked_for(tmp_path):
    with pytest.raises(InventoryError) as caught:
        find_inventory(None, tmp_path, {})
    for place in ("-i", "$FLEET_INVENTORY", str(tmp_path / "fleet.yaml"), str(tmp_path / "hostfile")):
        assert place in caught.value.message


def test_a_named_file_that_is_missing_is_never_replaced_by_another(tmp_path):
    (tmp_path / "hostfile").write_text("a")
    for explicit, environ in (("nope", {}), ("", {}), (None, {"FLEET_INVENTORY": "nope"})):
        with pytest.raises(InventoryError, match="no inventory"):
            find_inventory(explicit, tmp_path, environ)


def test_lab_names_the_lab_and_not_a_file(tmp_path, monkeypatch):
    (tmp_path / "lab").write_text("a")
    monkeypatch.setenv("FLEET_LAB_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(InventoryError, match="lab 'lab' is not up"):
        find_inventory("lab", tmp_path, {})
    assert find_inventory("./lab", tmp_path, {}) == tmp_path / "lab"


def test_what_cannot_be_read_is_an_error(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InventoryError, match="cannot read"):
            load(path)
