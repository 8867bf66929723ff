"""Reads this container's place in a distributed run from the environment, by the tables of platforms.py."""

import os
import re

from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Mapping
from fleet.node.container.platforms import CHILD, PLATFORMS
from fleet.node.container.variables import reader

MOST_NODES, MOST_RANKS = 65536, 1024
DEFAULT_PORT = 29500
LABEL = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
HOST = r"(?:%s(?:\.%s)*\.?|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)" % (LABEL, LABEL)  # a name, an address
COUNTED = ("auto", "gpu", "cpu")  # ranks a node, as torchrun has it
# options of the command line -> the thing of a table
ASKED = {
    "nnodes": "nodes",
    "node_rank": "rank",
    "nproc_per_node": "each",
    "master_addr": "master",
    "master_port": "port",
    "rdzv_id": "job",
}


class Place:
    """platform: its table. least, most: nodes; alike where the run is static. rank: which of them this is, None: not
    set. each: ranks of a node, a number or one of COUNTED; None: not set. given: thing -> (where it is set, the text).
    wrong: (message, remedy) of what cannot be."""

    def __init__(self, platform: "dict[str, Any]") -> None:
        self.platform = platform
        self.least = self.most = 0
        self.rank: int | None = None
        self.each: int | str | None = None
        self.master: str | None = None
        self.port = DEFAULT_PORT
        self.job: str | None = None
        self.given: dict[str, tuple[str, str]] = {}
        self.wrong: list[tuple[str, str]] = []

    @property
    def elastic(self) -> bool:
        return self.least != self.most


# -- the place ------------------------------------------------------------------------------------------------
def table_of(environ: "Mapping[str, str]", name: "str | None") -> "dict[str, Any]":
    """Refused where none fits."""
    for table in PLATFORMS:
        signed = all(environ.get(sign) for sign in table["signs"])
        if signed and not any(environ.get(sign) for sign in table.get("unless", ())) and name in (None, table["name"]):
            return table
    known = list(dict.fromkeys(table["name"] for table in PLATFORMS))
    if name is not None and name not in known:
        raise Refused("no platform %r is known" % name, "there are " + ", ".join(known))
    if name is not None:
        signs = next(table["signs"] for table in PLATFORMS if table["name"] == name)
        raise Refused("this is no %s: %s is not set" % (name, " and ".join(signs)), "leave out --platform")
    raise Refused(
        "nothing in the environment says how many nodes there are",
        "set NNODES, MASTER_ADDR and MASTER_PORT in the platform's form, or give --nnodes 2 --master-addr HOST",
    )


def place_of(environ: "Mapping[str, str]", asked: "Mapping[str, str]", platform: "str | None" = None) -> Place:
    """asked: of ASKED, what is given instead of a variable. What cannot be is in its `wrong`. Refused: nothing fits."""
    child = [name for name in CHILD if environ.get(name)]
    if child:
        raise Refused(
            "%s is set: this is a process below a launcher already, not a container" % child[0],
            "start this instead of torchrun, mpirun or accelerate, not below it",
        )
    given = {ASKED[name]: value for name, value in asked.items()}
    if "nodes" in given and platform is None:
        table: dict[str, Any] = {"name": "command line", "sure": "given", "origin": "--nnodes"}
    else:
        table = table_of(environ, platform)
    place = Place(table)
    for thing in ("nodes", "least", "most", "rank", "each", "master", "port", "job"):
        if thing in given:
            option = next(name for name, its in ASKED.items() if its == thing)
            place.given[thing] = "--" + option.replace("_", "-"), given[thing]
            continue
        for variable in table.get(thing, ()):
            name, _, kind = variable.partition(":")
            if environ.get(name, "") != "":
                place.given[thing] = name, reader(kind, environ[name], environ).strip()
                break
    take_in(place)
    compare(place, environ)
    return place


def take_in(place: Place) -> None:
    """The values of what is given, as far as they make sense."""
    wrong = place.wrong

    def text_of(thing: str) -> "str | None":
        """Its text; what no platform would set is none."""
        if thing not in place.given:
            return None
        where, text = place.given[thing]
        if re.search(r"\$[{(A-Za-z_]|%[A-Z_]+%|^<.*>$", text):
            wrong.append(("%s=%s: not expanded" % (where, text), "no shell reads the platform's form: write the value"))
            return None
        if text == "":
            wrong.append(("%s says nothing of this container" % where, "is this host in it, and is it whole?"))
            return None
        return text

    def number(thing: str, least: int, most: int, what: str) -> "int | None":
        text = text_of(thing)
        if text is None:
            return None
        if not re.match(r"[0-9]{1,9}\Z", text) or not least <= int(text) <= most:
            wrong.append(
                ("%s=%s: no %s" % (place.given[thing][0], text, what), "a number from %d to %d" % (least, most))
            )
            return None
        return int(text)

    nodes = place.given.get("nodes", ("", ""))[1]
    if re.match(r"[^:]+:[^:]+\Z", nodes):
        where = place.given.pop("nodes")[0]
        place.given["least"], place.given["most"] = (where, nodes.partition(":")[0]), (where, nodes.partition(":")[2])
    if "least" in place.given or "most" in place.given:
        place.least, place.most = (number(end, 1, MOST_NODES, "number of nodes") or 0 for end in ("least", "most"))
        if place.least > place.most > 0:
            wrong.append(
                ("%d nodes at least, and %d at most" % (place.least, place.most), "MIN_NNODES is the smaller one")
            )
    else:
        place.least = place.most = number("nodes", 1, MOST_NODES, "number of nodes") or 0
        if "nodes" not in place.given:
            wrong.append(("nothing says how many nodes there are", "set NNODES, or give --nnodes"))
    place.rank = number("rank", 0, MOST_NODES, "node rank")
    if place.rank is not None and place.most and place.rank >= place.most:
        wrong.append(
            (
                "%s=%d, of %d nodes: ranks of nodes begin with 0" % (place.given["rank"][0], place.rank, place.most),
                "does it count processes? the number of nodes is that of containers",
            )
        )
    text = text_of("each")
    place.each = text if text in COUNTED else number("each", 1, MOST_RANKS, "number of ranks") if text else None
    place.port = number("port", 1, 65535, "port") or DEFAULT_PORT
    place.job = text_of("job")
    place.master = master(place, text_of("master"))


def master(place: Place, text: "str | None") -> "str | None":
    if text is None:
        if place.most > 1 and "master" not in place.given:
            place.wrong.append(
                ("nothing says where %d nodes meet" % place.most, "set MASTER_ADDR to the first container's name")
            )
        return None
    where = place.given["master"][0]
    if not re.match(HOST + r"\Z", text):
        place.wrong.append(("%s=%s: no host's name or address" % (where, text), "the port is MASTER_PORT's"))
    elif place.most > 1 and (text in ("localhost", "0.0.0.0", "::1") or text.startswith("127.")):
        place.wrong.append(
            ("%s=%s is each container itself" % (where, text), "the first container's name, as the others know it")
        )
    return text


def compare(place: Place, environ: "Mapping[str, str]") -> None:
    """Compares two variables for the same thing, and finds what the platform has started more than once."""
    table = place.platform
    mine = {"nodes": str(place.most), "rank": str(place.rank), "master": place.master, "port": str(place.port)}
    for name, thing in table.get("alike", ()):
        other = environ.get(name)
        if not other or mine[thing] in (None, "None", "0") or (thing == "nodes" and place.elastic and name != "NNODES"):
            continue
        if other != mine[thing]:
            where = place.given.get(thing, place.given.get("most", ("", "")))[0]
            place.wrong.append(
                (
                    "%s=%s, but %s says %s" % (name, other, where, mine[thing]),
                    "unset the one that is left over; WORLD_SIZE and RANK count containers here",
                )
            )
    several = table.get("several")
    if several:
        variable, _, kind = several[0].partition(":")
        count = reader(kind, environ.get(variable, "1"), environ)
        if count.isdigit() and int(count) > 1:
            place.wrong.append(("%s=%s processes were started on this node" % (variable, count), several[1]))
    static = place.most > 1 and not place.elastic
    if static and table.get("rank") and "rank" not in place.given:
        name = table["rank"][0].partition(":")[0]
        place.wrong.append(("nothing says which of %d nodes this is" % place.most, "set %s, or --node-rank" % name))
    elif (place.elastic or static and place.rank is None) and place.job is None and "job" not in place.given:
        place.wrong.append(
            (
                "nothing tells this run from others: RDZV_ID is not set",
                "one text for all containers, another for each run",
            )
        )


# -- what the machine has -------------------------------------------------------------------------------------
def devices(environ: "Mapping[str, str]") -> "int | None":
    """Accelerators that processes here may use; None: not known. Nothing is called that could hang."""
    for name in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in environ:
            return len([one for one in environ[name].split(",") if one.strip() not in ("", "-1", "none", "NoDevFiles")])
    try:
        found = os.listdir("/dev")
    except OSError:
        return None
    return sum(bool(re.match(r"(?:nvidia|davinci)[0-9]+\Z", name)) for name in found) or None


def ranks_here(place: Place, environ: "Mapping[str, str]") -> int:
    """How many this container starts; what it has too few devices for is in place.wrong."""
    have = devices(environ)
    each = place.each
    if each is None or each in ("gpu", "auto"):
        if each == "gpu" and not have:
            place.wrong.append(("a rank for each GPU, and there is none here", "--nproc-per-node 1, or ask for GPUs"))
        return have or (os.cpu_count() or 1 if each == "auto" else 1)
    if each == "cpu":
        return os.cpu_count() or 1
    assert isinstance(each, int)
    if have is not None and have < each:
        place.wrong.append(
            (
                "%s=%d, and %d devices here" % (place.given["each"][0], each, have),
                "ask the platform for as many as there are ranks, or start fewer",
            )
        )
    return each
