"""Any text at all: an Inventory or an InventoryError, never a traceback and never a host that is not in the text."""

from __future__ import annotations

import itertools
import re
from dataclasses import fields

import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import FleetError
from fleet.inventory.convert import FORMATS
from fleet.inventory.find import parse
from tests.in_process import selected
from tests.liar import steady

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:%-]*")

WORDS = st.sampled_from(
    [
        "gpu1",
        "gpu[01-04]",
        "gpu1[5-12]",
        "a[1-2]b[3,1]",
        "fe80::1",
        "::1",
        "[fe80::1]:8",
        "gpu1:8",
        "@g",
        "@all",
        "gpu*",
        "slots=8",
        "max_slots=9",
        "port=22",
        "user=root",
        "address=10.0.0.1",
        "env=A=1",
        "devices=0,2",
        '"',
        "'",
        "#",
        "\\",
        "hosts",
        "defaults",
        "env",
        "groups",
        "sync",
        ":",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "\t",
        " ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "&",
        "*",
        "!",
        "^",
        "%",
        "!!python/name:os.system",
        "&a",
        "*a",
        "<<: *a",
        "~",
        "yes",
        "022",
        "1e9",
        "-o",
        "$(id)",
        "\r\n",
        "\x1b[31m",
        "\0",
        "\ufeff",
        "é",
        "٣",
        "\ud800",
        "gpu[1-99999999]",
        "---",
        "...",
        "%YAML 1.1",
        "|",
        ">",
        "?",
    ]
)
SOUP = st.lists(st.one_of(WORDS, st.text(max_size=4)), max_size=25).map("".join)

INDEX = st.integers(0, 120)
NAMES = st.from_regex(r"[a-z_][a-z0-9_-]{0,6}", fullmatch=True)
NODESETS = st.one_of(
    NAMES,
    st.builds(lambda p, a, n: f"{p}[{a}-{a + n}]", NAMES, INDEX, st.integers(0, 12)),
    st.builds(
        lambda p, ns, s: f"{p}[{','.join(ns)}]{s}",
        NAMES,
        st.lists(st.from_regex(r"[0-9]{1,3}", fullmatch=True), min_size=1, max_size=3),
        st.sampled_from(["", "x", "-ib", "0", "%1"]),
    ),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    SOUP,
    st.sampled_from(["root", "10.0.0.1", "fe80::1%eth0", "~/work", "a b", "SHA256:" + "A" * 43]),
)
HOSTS = st.dictionaries(
    st.sampled_from([*(field.name for field in fields(parse(b"a", "f").hosts[0])), "prot"]),
    st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(NAMES, SCALARS, max_size=3)),
    max_size=4,
)
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "port": st.integers(1, 65535),
        "slots": st.integers(1, 16),
        "user": NAMES,
        "workdir": st.just("~/a b"),
        "proxy_jump": st.just("u@j:22,[::1]:3"),
        "env": st.dictionaries(NAMES, st.text("a1 \"'\\\\$#\n\té", max_size=6), max_size=2),
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "hosts": st.one_of(
            st.dictionaries(NODESETS, st.one_of(GOOD, GOOD, st.none()), max_size=5),
            st.dictionaries(NODESETS, HOSTS, max_size=3),
            st.lists(NODESETS, max_size=5),
            SCALARS,
        )
    },
    optional={
        "defaults": st.one_of(GOOD, GOOD, HOSTS),
        "env": st.dictionaries(NAMES, SCALARS, max_size=1),
        "sync": st.dictionaries(NAMES, SCALARS, max_size=2),
        "groups": st.dictionaries(NAMES, st.one_of(st.just("@all"), NODESETS, SOUP), max_size=2),
    },
)


def named_by(nodeset: str) -> set[str]:
    """A second, naive reading of a node set: text put together, nothing else."""
    names: set[str] = set()
    for part in re.split(r",(?![^\[]*\])", nodeset):
        choices = []
        for i, piece in enumerate(re.split(r"\[([^\]]*)\]", part.strip())):
            indexes = []
            for text in piece.split(",") if i % 2 else []:
                first, _, last = text.strip().partition("-")
                numbers = range(int(first), int(last or first) + 1)
                indexes += [str(n).zfill(len(first) if first.startswith("0") else 0) for n in numbers]
            choices.append(indexes if i % 2 else [piece])
        names |= {"".join(c) for c in itertools.product(*choices)}
    return names


def check(inventory) -> None:
    """What holds for every inventory that was read, whatever it was read from."""
    assert inventory.hosts
    assert len(set(inventory.names)) == len(inventory.hosts)
    for host in inventory.hosts:
        assert NAME.fullmatch(host.name)
        for text in (host.address, host.data_address, host.user, host.proxy_jump, host.identity_file):
            assert text is None or not text.startswith("-")
        assert host.port is None or 1 <= host.port <= 65535
        assert host.slots is None or host.slots >= 1
        assert all(type(v) is str for v in host.env.values())
    assert all(set(members) <= set(inventory.names) for members in inventory.groups.values())
    for form in FORMATS:
        try:
            text = FORMATS[form](inventory)
        except FleetError as error:
            assert error.hint is not None or error.host is not None
            continue
        assert text.endswith("\n")
        if form == "deepspeed":
            again = parse(text.encode(), "again")
            assert [(h.name, h.address, h.slots, h.user, h.port) for h in again.hosts] == [
                (h.name, h.address, h.slots, h.user, h.port) for h in inventory.hosts
            ]
            assert [dict(h.env) for h in again.hosts] == [inventory.env_for(h) for h in inventory.hosts]
        if form == "ansible":
            assert list(yaml.safe_load(text)["all"]["hosts"]) == list(inventory.names)


def tried(read, *args):
    try:
        inventory = read(*args)
    except FleetError as error:
        assert error.exit_code == 121
        assert error.message
        assert "\n" not in str(error)
        assert "\x1b" not in str(error)
        return None
    return inventory


@steady
@given(st.one_of(SOUP, SOUP.map("hosts:\n  ".__add__), st.text(max_size=60)))
def test_any_text(text):
    for name in ("f.yaml", "f"):
        inventory = tried(parse, text.encode("utf-8", "surrogatepass"), name)
        if inventory:
            check(inventory)


@steady
@given(
    st.one_of(st.binary(max_size=60), SOUP.map(lambda t: t.encode("utf-8", "surrogatepass"))),
    st.sampled_from(["fleet.yaml", "hostfile"]),
)
def test_any_bytes(raw, source):
    inventory = tried(parse, raw, source)
    if inventory:
        check(inventory)


@steady
@given(DOCUMENTS)
def test_any_document(document):
    inventory = tried(parse, yaml.safe_dump(document, allow_unicode=True).encode(), "fleet.yaml")
    if inventory:
        check(inventory)
        keys = document["hosts"]
        keys = [keys] if not isinstance(keys, (dict, list)) else keys
        assert set(inventory.names) == {name for key in keys for name in named_by(str(key))}


@steady
@given(
    st.lists(
        st.builds("{} {}".format, NODESETS, st.sampled_from(["", "slots=4", "slots=8 max_slots=8", "# x"])),
        min_size=1,
        max_size=5,
    )
)
def test_a_hostfile_names_its_hosts_and_no_others(lines):
    inventory = tried(parse, "\n".join(lines).encode(), "hostfile")
    if inventory:
        check(inventory)
        assert set(inventory.names) == {name for line in lines for name in named_by(line.split()[0])}


INVENTORY = parse(
    b"hosts: {'gpu[1-4]': {slots: 4}, b: {}, 'fe80::1': {}}\ngroups: {g: 'gpu[1-2]', h: '@g,b'}", "f.yaml"
)
OPERANDS = st.sampled_from(["gpu1", "gpu[1-4]", "b", "@g", "@h", "@all", "gpu*", "gpu2:0,2", "fe80::1", "gpu[2-3]:1-3"])
EXPRESSIONS = st.one_of(
    SOUP,
    st.builds(
        lambda first, rest: first + "".join(map("".join, rest)),
        OPERANDS,
        st.lists(st.tuples(st.sampled_from(",,@!&^ "), st.one_of(OPERANDS, OPERANDS, WORDS)), max_size=4),
    ),
)


@steady
@given(st.one_of(st.none(), EXPRESSIONS), st.one_of(st.none(), EXPRESSIONS))
def test_any_selection(hosts, exclude):
    chosen = tried(selected, INVENTORY, hosts, exclude)
    if chosen:
        assert chosen.hosts
        assert [n for n in INVENTORY.names if n in chosen.names] == list(chosen.names)
        assert all(h.devices is None or h.slots == len(h.devices) > 0 for h in chosen.hosts)


@steady
@given(
    st.permutations(["gpu1", "gpu2", "gpu[3-4]", "b"]).flatmap(
        lambda names: st.lists(st.sampled_from(names), min_size=1).map(lambda some: (names, some))
    )
)
def test_a_selection_keeps_the_order_of_the_file(case):
    names, some = case
    inventory = parse(yaml.safe_dump({"hosts": names}).encode(), "f.yaml")
    chosen = selected(inventory, ",".join(some))
    wanted = {name for text in some for name in named_by(text)}
    assert list(chosen.names) == [name for name in inventory.names if name in wanted]
