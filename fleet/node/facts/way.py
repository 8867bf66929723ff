"""Finds the address of this node that its ranks use in a run, and the name of its interface for gloo and NCCL.

gloo and NCCL take the name of an interface, and listen at the first address that getifaddrs() has for that name. So
ranks can use an address only if it is the first one of its interface.
"""

import errno
import os
import socket

from fleet.node.base.types import Any, Mapping
from fleet.node.facts.network import Held, addresses
from fleet.node.facts.system import text

NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
REACHED = "set 'data_address' of %s to the address the other nodes reach it at"


def resolve(address: str) -> str:
    """Returns the numeric address that a name or address has on this node. Raises OSError if the name is unknown."""
    try:
        return socket.getaddrinfo(address, None, 0, socket.SOCK_STREAM)[0][4][0]  # type: ignore[return-value]
    except UnicodeError as error:  # a text such as "a..b" cannot be a name
        raise OSError(errno.EINVAL, "it can be no name") from error


def source_towards(address: str) -> str:
    """Returns the own address from which this node sends to `address`. Sends nothing. Raises OSError if there is no
    route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def holder_of(address: str, own: "list[Held]") -> "Held | None":
    return next((held for held in own if held.address == address.partition("%")[0]), None)


def is_here(name: str) -> bool:
    """Returns whether a name or address is this node's own."""
    try:
        at = resolve(name)
    except OSError:
        return False
    return at.startswith("127.") or holder_of(at, addresses()) is not None


def named(value: str, own: "list[Held]") -> "Held | None":
    """Returns the first address of the interfaces that a value of NCCL_SOCKET_IFNAME names. Returns None if there is
    none. The value lists prefixes of names. If it begins with '=', it lists whole names; with '^', it lists the
    interfaces to leave out. own: the addresses of this node."""
    names = value.lstrip("^=").split(",")
    for held in own:
        fits = held.label in names if value[:1] == "=" else held.label.startswith(tuple(filter(None, names)))
        if held.label != "lo" and fits is not (value[:1] == "^"):
            return held
    return None


def nccl_conf() -> "dict[str, str]":
    """Returns the variables in NCCL's own files. NCCL uses these variables if the environment does not have them."""
    found: dict[str, str] = {}
    for path in ("/etc/nccl.conf", os.path.expanduser("~/.nccl.conf")):
        for line in text(path).splitlines()[:100]:
            name, is_set, value = line.partition("#")[0].partition("=")
            if is_set:
                found[name.strip()[:100]] = value.strip()[:200]
    return found


def variables(held: Held, own: "list[Held]") -> "dict[str, str]":
    """Returns the variables that make gloo and NCCL use an interface. gloo takes a whole name, and NCCL a prefix. So
    NCCL's value begins with '=' if another interface's name begins with this one's."""
    longer = any(each.label != held.label and each.label.startswith(held.label) for each in own)
    return dict(zip(NAMES, (held.label, "=" * longer + held.label)))


def given(spec: "dict[str, Any]") -> "list[str]":
    return [name for name in NAMES if name in {**(spec.get("env") or {}), **(spec.get("env_expand") or {})}]


def chosen(spec: "dict[str, Any]", env: "Mapping[str, str]", own: "list[Held]") -> "Held | None":
    """Returns the address of the interface that this node's variables name, or None. Variables that the user gave this
    run have precedence over a data_address. Variables of startup files and of NCCL's own files count only if the node
    has no data_address. env: the environment of training. own: the addresses of this node."""
    names = given(spec)
    if not names and not spec["way"]["own"]:
        names = [*NAMES]
    if os.path.exists("/proc/driver/nvidia"):
        names.reverse()
    found = [named(env[name], own) for name in names if env.get(name)]
    return next(filter(None, found), None)


def network(spec: "dict[str, Any]", env: "Mapping[str, str]") -> "dict[str, Any]":
    """Returns {"network": facts}; Way in protocol/messages/facts.py describes the facts. spec: {"way": {"master": the
    master's address, "is_master": whether this node is the master, "own": this node's data_address or null, "other":
    another node's address (the master's, except on the master), or null}}."""
    way, own = spec["way"], addresses()
    facts: dict[str, Any] = dict.fromkeys(("master", "address", "interface", "advertised", "nccl", "error", "hint"))
    try:
        known = facts["master"] = resolve(way["master"])
        if way["other"] and (known.startswith("127.") or known == "::1"):
            means = "the master's address %s means this node itself (%s)" % (way["master"], known)
            facts.update(error=means, hint=REACHED % "the first host")
        at = resolve(way["own"]) if way["own"] else known if way["is_master"] else source_towards(known)
        held = chosen(spec, env, own)
        at = held.address if held else at
        held = held or holder_of(at, own)
        if held is None:
            what = "its data_address" if way["own"] else "the master's address"
            has = ", ".join("%s %s" % (each.label, each.address) for each in own if each.label != "lo")
            facts["error"] = facts["error"] or "no interface here holds %s %s" % (what, at)
            facts["hint"] = facts["hint"] or "%s; it has %s" % (REACHED % "this host", has or "none")
            at = source_towards(resolve(way["other"])) if way["other"] else at
            held = holder_of(at, own)
    except OSError as error:
        facts["error"] = "no way to the master's address %s: %s" % (way["master"], error.strerror or error)
        facts["hint"] = "set 'data_address' of the first host, or give --master-addr"
        return {"network": facts}
    facts["address"] = at
    if held is not None:
        label = facts["interface"] = held.label
        facts["advertised"] = next(each.address for each in own if each.label == label)
        names = {name: named(env[name], own) for name in NAMES if env.get(name) and name not in given(spec)}
        facts["replaced"] = {name: env[name] for name, it in names.items() if it is None or it.label != label}
        facts["nccl"] = variables(held, own)[NAMES[1]]
        if text("/sys/class/net/%s/operstate" % socket.if_indextoname(held.number)).strip() == "down":
            facts["error"] = facts["error"] or "interface %s, which holds %s, is down" % (label, at)
            facts["hint"] = facts["hint"] or "'ip link set %s up' there, or %s" % (label, REACHED % "this host")
    return {"network": facts}
