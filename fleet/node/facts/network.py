"""Lists the network interfaces with their addresses, the interface that leads to the head, and InfiniBand ports."""

import glob
import os
import socket
import struct
from typing import NamedTuple

from fleet.node.base.types import Any
from fleet.node.base.wire import grouped
from fleet.node.facts.system import text


class Held(NamedTuple):
    """Describes an address of this machine. number: of its interface. label: the name that getifaddrs() has for it,
    such as eth0:1 for an alias; "" if the kernel has none."""

    number: int
    label: str
    address: str
    prefix: int


def parse_addresses(data: bytes) -> "list[Held | None]":
    """Returns the addresses in a buffer of netlink RTM_NEWADDR messages, then None if the dump ends there."""
    found: list[Held | None] = []
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind == 3 or length < 16:  # NLMSG_DONE
            return found + [None]
        if kind == 20:
            family, prefix, _flags, _scope, index = struct.unpack_from("=BBBBI", data, at + 16)
            attributes = {}
            position = at + 24
            while position + 4 <= at + length:
                size, which = struct.unpack_from("=HH", data, position)
                if size < 4:
                    break
                attributes[which] = data[position + 4 : position + size]
                position += (size + 3) & ~3
            # IFA_LOCAL (2) is ours; IFA_ADDRESS (1) is the peer's on a point-to-point link
            raw = attributes.get(2, attributes.get(1))
            if raw and family in (socket.AF_INET, socket.AF_INET6):
                label = attributes.get(3, b"").split(b"\0")[0].decode("utf-8", "replace")  # of IPv4 only
                found.append(Held(index, label, socket.inet_ntop(family, raw), prefix))
        at += (length + 3) & ~3
    return found


def addresses() -> "list[Held]":
    """Returns all addresses in the kernel's order, IPv4 first, as getifaddrs() does. It does not use `ip`, which some
    nodes lack."""
    result: list[Held] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(5.0)
        link.send(struct.pack("=IHHIIBBBBI", 24, 22, 0x301, 1, 0, 0, 0, 0, 0, 0))  # RTM_GETADDR, REQUEST | DUMP
        while True:
            for entry in parse_addresses(link.recv(1 << 16)):
                if entry is None:
                    return result
                result.append(entry if entry.label else entry._replace(label=socket.if_indextoname(entry.number)))


def number(path: str) -> "int | None":
    value = text(path).strip()
    return int(value) if value.lstrip("-").isdigit() and int(value) > 0 else None


def interfaces() -> "dict[str, Any]":
    known = grouped((held.number, "%s/%d" % (held.address, held.prefix)) for held in addresses())
    # "client_address client_port our_address our_port"
    reached = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[2].partition("%")[0]
    found = []
    toward_head = None
    for folder in sorted(glob.glob("/sys/class/net/*")):
        name = os.path.basename(folder)
        own = known.get(number(folder + "/ifindex") or 0, [])
        if reached and reached in [address.split("/")[0] for address in own]:
            toward_head = name
        # a container host has dozens of veth ends without addresses
        if name != "lo" and (own or os.path.exists(folder + "/device")):
            found.append(
                {
                    "name": name,
                    "state": text(folder + "/operstate").strip() or None,
                    "addresses": own,
                    "speed": number(folder + "/speed"),
                    "mtu": number(folder + "/mtu"),
                }
            )
    return {"interfaces": found, "head_interface": toward_head}


# files of a port that count errors of its link or of the link's other end. RoCE ports count them in hw_counters
ERRORS = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/out_of_sequence",
)


def infiniband(root: str = "/sys/class/infiniband") -> "dict[str, Any]":
    """Returns the ports of InfiniBand and RoCE devices. "errors": the ERRORS that are not 0, as text, or None."""
    found = []
    for port in sorted(glob.glob(root + "/*/ports/*")):
        device, _, name = port[len(root) + 1 :].split("/")
        counts = {error.partition("/")[2]: number("%s/%s" % (port, error)) for error in ERRORS}
        found.append(
            {
                "device": device,
                "port": name,
                "state": text(port + "/state").partition(":")[2].strip(),
                "rate": text(port + "/rate").strip() or None,
                "link_layer": text(port + "/link_layer").strip() or None,
                "errors": ", ".join("%s %s" % each for each in counts.items() if each[1]) or None,
            }
        )
    return {"infiniband": found}
