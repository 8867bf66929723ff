"""YAML inventories: what they mean, and where and why a wrong one is refused."""

from __future__ import annotations

import time

import pytest

from fleet.errors import InventoryError
from fleet.inventory.find import parse
from fleet.inventory.yaml_file import parse_yaml

DESIGN = """\
defaults: {user: root, port: 22, slots: 8, python: /opt/conda/envs/train/bin/python, workdir: ~/work}
env: {NCCL_DEBUG: WARN}
hosts:
  gpu[01-04]: {}
  huaweiyun2: {address: 4.5.6.7, port: 33, data_address: 192.168.0.7, slots: 4,
               activate: "source /opt/rh/devtoolset-7/enable"}
groups: {a100: "gpu[01-02]"}
"""


def test_the_example_of_the_design():
    inventory = parse_yaml(DESIGN, "fleet.yaml")
    assert inventory.names == ("gpu01", "gpu02", "gpu03", "gpu04", "huaweiyun2")
    assert inventory.env == {"NCCL_DEBUG": "WARN"}
    assert inventory.groups == {"a100": ("gpu01", "gpu02")}
    gpu, cloud = inventory.host("gpu01"), inventory.host("huaweiyun2")
    assert (gpu.address, gpu.user, gpu.port, gpu.slots, gpu.workdir) == ("gpu01", "root", 22, 8, "~/work")
    assert (cloud.address, cloud.port, cloud.data_address, cloud.slots) == ("4.5.6.7", 33, "192.168.0.7", 4)
    assert cloud.activate == "source /opt/rh/devtoolset-7/enable"


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("gpu[04,01-02],a", ["gpu04", "gpu01", "gpu02", "a"]),
        ("r[2,1]n[2,1]", ["r2n2", "r2n1", "r1n2", "r1n1"]),
        ("gpu1[5-12]", ["gpu15", "gpu16", "gpu17", "gpu18", "gpu19", "gpu110", "gpu111", "gpu112"]),
        ("n[08-10]x", ["n08x", "n09x", "n10x"]),
        ("n[1-9/4]", ["n1", "n5", "n9"]),
    ],
)
def test_node_sets_keep_the_order_they_are_written_in(hosts, names):
    assert list(parse_yaml(f"hosts: '{hosts}'", "f").names) == names


@pytest.mark.parametrize("text", ["hosts: [b, a]", "hosts: {b: , a: }", "hosts:\n  b:\n  a: {}\n", "hosts: b,a"])
def test_ways_to_write_hosts(text):
    assert parse_yaml(text, "f").names == ("b", "a")


def test_defaults_env_and_null():
    inventory = parse_yaml(
        "defaults: {user: root, env: {A: 1, B: 2}}\nhosts: {a: {user: null, env: {B: 010}}, b: {}}", "f"
    )
    a, b = inventory.hosts
    assert (a.user, dict(a.env)) == (None, {"A": "1", "B": "010"})
    assert (b.user, dict(b.env)) == ("root", {"A": "1", "B": "2"})


def test_devices_bring_their_slots():
    inventory = parse_yaml("defaults: {slots: 8}\nhosts: {a: {devices: [4, 0]}, b: {devices: 1-3}, c: {}}", "f")
    assert [(h.devices, h.slots) for h in inventory.hosts] == [((0, 4), 2), ((1, 2, 3), 3), (None, 8)]


def test_merge_keys_and_aliases():
    inventory = parse_yaml("hosts:\n  a: &x {port: 1, slots: 2}\n  b: {<<: *x, port: 3}\n", "f")
    assert [(h.port, h.slots) for h in inventory.hosts] == [(1, 2), (3, 2)]


def test_sync_is_plain_data():
    text = "hosts: [a]\nsync: {exclude: ['*.pt', 3], deep: {n: 1.5, yes: on, none: ~, date: 2020-01-01}}"
    assert parse_yaml(text, "f").sync == {
        "exclude": ["*.pt", 3],
        "deep": {"n": 1.5, "yes": True, "none": None, "date": "2020-01-01"},
    }


def test_groups_of_groups_and_all():
    inventory = parse_yaml(
        "hosts: 'g[1-4]'\ngroups: {a: '@b,g1', b: 'g[3-4]!g4', rest: '@all!@a', list: [g4, '@b']}", "f"
    )
    assert inventory.groups == {"a": ("g1", "g3"), "b": ("g3",), "rest": ("g2", "g4"), "list": ("g3", "g4")}


def test_one_private_address_behind_two_bastions_is_two_machines():
    text = "hosts: {a: {address: 10.0.0.1, proxy_jump: x}, b: {address: 10.0.0.1, proxy_jump: y}}"
    assert parse_yaml(text, "f").names == ("a", "b")


# (text, the line, words of the message, words of the hint)
WRONG = [
    ("", None, "is empty", "hosts:"),
    ("# nothing\n", None, "is empty", ""),
    ("[gpu1]", 1, "a list", ""),
    ("gpu1 slots=8", 1, "a single value", "hostfile"),
    ("env: {}", None, "no hosts", ""),
    ("hosts:\n", 1, "empty", ""),
    ("hosts: {}", None, "names no hosts", ""),
    ("hosts: [a]\nhost: 1\n", 2, "unknown section 'host'", "did you mean 'hosts'?"),
    ("hosts:\n  gpu03:\n    adress: x\n", 3, "host gpu03: unknown key 'adress'", "did you mean 'address'?"),
    ("hosts:\n  a: {zzzz: 1}\n", 2, "unknown key 'zzzz'", "known keys: address"),
    ("hosts: {a: {name: b}}", 1, "unknown key 'name'", ""),
    ("hosts: {a: {port: abc}}", 1, "port: 'abc' is not a whole number", ""),
    ("hosts: {a: {port: 70000}}", 1, "port: 70000 is not between 1 and 65535", ""),
    ("hosts: {a: {port: 022}}", 1, "port: '022'", "leading zeros"),
    ("hosts: {a: {port: 22:00}}", 1, "port: '22:00'", ""),
    ("hosts: {a: {port: 1.5}}", 1, "port: '1.5'", ""),
    ("hosts: {a: {port: [22]}}", 1, "must be a number, not a list", ""),
    ("hosts: {a: {slots: -1}}", 1, "slots: -1 is not between", ""),
    ("hosts: {a: {slots: 0}}", 1, "slots: 0 is not between", ""),
    ("hosts: {a: {slots: true}}", 1, "must be a number, not a true/false (true)", ""),
    ("hosts: {a: {slots: 9999999999999999999999}}", 1, "slots:", ""),
    ("hosts: {a: {user: yes}}", 1, "must be text, not a true/false (yes)", "quote it"),
    ("hosts: {a: {user: -oX}}", 1, "user: '-oX'", ""),
    ("hosts: {a: {user: 'a b'}}", 1, "user: 'a b'", ""),
    ("hosts: {a: {address: '-oProxyCommand=touch X'}}", 1, "address:", ""),
    ("hosts: {a: {address: 'a;b'}}", 1, "address:", ""),
    ("hosts: {a: {address: 'h:22'}}", 1, "address:", "port"),
    ("hosts: {a: {address: 'u@h'}}", 1, "address:", "user"),
    ("hosts: {a: {address: 10.1}}", 1, "'10.1' is not an IPv4 address", ""),
    ("hosts: {a: {address: 256.0.0.1}}", 1, "not an IPv4 address", ""),
    ("hosts: {a: {address: 'fe80::1%a b'}}", 1, "address:", ""),
    ("hosts: {a: {data_address: 'x y'}}", 1, "data_address:", ""),
    ("hosts: {a: {proxy_jump: '-x'}}", 1, "proxy_jump:", ""),
    ("hosts: {a: {proxy_jump: 'b:99999'}}", 1, "proxy_jump:", ""),
    ("hosts: {a: {proxy_jump: '[fe80::1%;id]'}}", 1, "proxy_jump:", ""),
    ("hosts: {a: {proxy_jump: b}, b: {proxy_jump: 'c,a'}}", 1, "leads back to itself", "null"),
    ("defaults: {proxy_jump: b}\nhosts: {a: {}, b: {}}", 2, "host b: its proxy_jump leads back to itself", ""),
    ("hosts: {a: {host_key: 'MD5:00'}}", 1, "not a fingerprint", "ssh-keygen"),
    ("hosts: {a: {identity_file: -i}}", 1, "read as an option", ""),
    ('hosts: {a: {workdir: "x\\e[31m"}}', 1, "workdir: 'x\\x1b[31m'", ""),
    ('hosts: {a: {workdir: ""}}', 1, "workdir: is empty", ""),
    ("hosts: {a: {devices: 3-1}}", 1, "runs backwards", ""),
    ("hosts: {a: {devices: [0, 0]}}", 1, "named twice", ""),
    ("hosts: {a: {devices: [x]}}", 1, "devices", ""),
    ("hosts: {a: {devices: 0-3, slots: 2}}", 1, "2 slots, but 4 devices", ""),
    ("hosts: {a: 5}", 1, "a host must be a mapping", ""),
    ("hosts: {a b: {}}", 1, "'a b' is not a host name", ""),
    ("hosts: {root@a: {}}", 1, "'root@a' is not a host name", "user"),
    ("hosts: {'': {}}", 1, "nothing before or after a comma", ""),
    ("hosts: {'::1': {}}", 1, "not a host name", "address"),
    ("hosts: {7: {}}", 1, "the name is no address", "give it an address"),
    ("hosts: {gpu[01-04: {}}", 1, "", ""),
    ("hosts: {'gpu[a-b]': {}}", 1, "'a-b' is not a range", "[1-4]"),
    ("hosts: {'gpu[3-1]': {}}", 1, "range '3-1' is empty", ""),
    ("hosts: {'gpu[1-999999999]': {}}", 1, "more than 100000 hosts", ""),
    ("hosts: {'a[1-9999]b[1-9999]': {}}", 1, "more than 100000 hosts", ""),
    ("hosts: ['a[1-90000]', 'b[1-90000]']", 1, "more than 100000 hosts", ""),
    ("hosts: [[a]]", 1, "not a list", ""),
    ("hosts:\n  a: {}\n  b: {}\n  a: {}\n", 4, "'a' is here twice, first on line 2", ""),
    ("hosts:\n  a[1-3]: {}\n  a2: {}\n", 3, "host a2: is here twice, first on line 2", ""),
    ("hosts: 'a[1-3,2]'", 1, "host a2: is here twice", ""),
    ("hosts:\n  a: {address: x}\n  b: {address: X.}\n", 3, "host b: has the address and port of host a on line 2", ""),
    ("hosts: {a: {address: '::1'}, b: {address: '0:0::1'}}", 1, "has the address and port", ""),
    ("hosts: {'a[1-2]': {address: x}}", 1, "cannot share one address", ""),
    ("defaults: {address: x}\nhosts: [a]", 1, "cannot be a default", ""),
    ("defaults: {prot: 1}\nhosts: [a]", 1, "unknown key 'prot'", "port"),
    ("defaults: [1]\nhosts: [a]", 1, "defaults must be a mapping", ""),
    ("env: {A: true}\nhosts: [a]", 1, "A must be text or a number, not a true/false", "quote it"),
    ("env: {A: }\nhosts: [a]", 1, "A must be text or a number, not empty", "quote it"),
    ("env: {A: [1]}\nhosts: [a]", 1, "not a list", ""),
    ("env: {A-B: 1}\nhosts: [a]", 1, "'A-B' is not a variable name", ""),
    ("env: {FLEET_RUN_ID: 1}\nhosts: [a]", 1, "FLEET_RUN_ID", ""),
    ('env: {A: "x\\0y"}\nhosts: [a]', 1, "NUL", ""),
    ("sync: [1]\nhosts: [a]", 1, "sync must be a mapping", ""),
    ("hosts: [a]\ngroups: {g: b}", 2, "group g: no host 'b'", ""),
    ("hosts: [gpu1]\ngroups: {g: gpu}", 2, "no host 'gpu'", "did you mean 'gpu1'?"),
    ("hosts: [a]\ngroups: {g: a, h: g}", 2, "no host 'g'", "did you mean '@g'?"),
    ("hosts: [a]\ngroups: {g: '@x'}", 2, "no group '@x'", "@g"),
    ("hosts: [a]\ngroups:\n  g: '@h'\n  h: '@g'\n", 3, "contains itself: g -> h -> g", ""),
    ("hosts: [a]\ngroups: {g: 'a!a'}", 2, "holds no host", ""),
    ("hosts: [a]\ngroups: {g: 'a:0'}", 2, "not devices", "-w"),
    ("hosts: [a]\ngroups: {g: true}", 2, "not a true/false", ""),
    ("hosts: [a]\ngroups: {'x y': a}", 2, "not a group name", ""),
    ("hosts:\n\ta: {}\n", 2, "\\t", "spaces"),
    ("hosts: {a: {proxy_jump: @b}}", 1, "cannot start any token", "quote"),
    ("hosts: [a]\n---\nhosts: [b]", 2, "another document", ""),
    ("hosts: {a: {user: *nobody}}", 1, "undefined alias", ""),
    ("hosts: {a: !!python/object/apply:os.system ['id']}", 1, "tag", ""),
    ("hosts: !!binary aGk=", 1, "tag", ""),
    ("hosts: {[1]: {}}", 1, "a key must be a word", ""),
    ("hosts: &h {a: *h}", 1, "nested deeper", ""),
    ('hosts: {a: {workdir: "\\UFFFFFFFF"}}', None, "not valid YAML", ""),
    ("x: " + "[" * 5000, None, "nested too deeply", ""),
]


@pytest.mark.parametrize(("text", "line", "message", "hint"), WRONG, ids=[w[0][:40] for w in WRONG])
def test_wrong_ones_say_where_why_and_what_next(text, line, message, hint):
    with pytest.raises(InventoryError) as caught:
        parse_yaml(text, "lab.yaml")
    assert caught.value.where == (f"lab.yaml:{line}" if line else "lab.yaml")
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.slow
def test_an_alias_bomb_is_defused_quickly():
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    start = time.process_time()
    with pytest.raises(InventoryError, match="aliases counted"):
        parse_yaml("\n".join(lines), "f")
    assert time.process_time() - start < 30


@pytest.mark.parametrize(
    ("raw", "line", "message"),
    [
        (b"hosts:\n  - \xff\n", 2, "UTF-8"),
        (b"hosts:\n  - a\0b\n", 2, "control character"),
        ("hosts: [a]".encode("utf-16"), 1, "UTF-8"),
        (b"hosts: [a\x1b[0m]", 1, "control character"),
    ],
)
def test_bytes_that_are_no_text(raw, line, message):
    with pytest.raises(InventoryError, match=message) as caught:
        parse(raw, "f.yaml")
    assert caught.value.where == f"f.yaml:{line}"


def test_bom_and_windows_line_ends_are_fine():
    assert parse(b"\xef\xbb\xbfhosts:\r\n  a: {port: 33}\r\n", "f.yaml").host("a").port == 33


def test_a_large_fleet_loads():
    assert len(parse_yaml("hosts: 'gpu[00001-10000]'\ngroups: {half: 'gpu[00001-05000]'}", "f").hosts) == 10000
