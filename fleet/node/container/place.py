"""Reads this container's place in a distributed run from the environment, by the tables of platforms.py."""

import os
import re

from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Mapping
from fleet.node.container.options import GIVEN_AS
from fleet.node.container.platforms import CHILD, OUT_OF_REACH, PLATFORMS
from fleet.node.container.variables import MEETING, value_of

MOST_NODES, MOST_RANKS = 65536, 1024
DEFAULT_PORT = 29500
LONGEST, LONGEST_JOB = 80, 255  # characters of a value in a message; of a run's name
LABEL = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
HOST = r"(?:%s(?:\.%s)*\.?|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%%\w+)?)" % (LABEL, LABEL)  # a name, an address
COUNTED = ("auto", "gpu", "cpu")  # values of torchrun's --nproc-per-node
BY_USER = ["NNODES:static", "nodes"]  # added to "alike" (see platforms.py) of each table that has no NNODES there


class Place:
    """Holds this container's place. platform: its table. least, most: numbers of nodes, equal unless the run is
    elastic. rank: the node rank; None: not set. each: ranks per node, a number or one of COUNTED; None: not set. given:
    thing (a key such as "nodes", see platforms.py) -> (variable or option, its text). wrong: [(message, remedy)]."""

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

    def variables(self, thing: str) -> str:
        """Returns the names of the variables that hold a thing, joined by "or"."""
        of_all = {"nodes": ["NNODES"], "rank": ["NODE_RANK"], "job": ["RDZV_ID"], **MEETING}
        names = [variable.partition(":")[0] for variable in self.platform.get(thing) or of_all[thing]]
        return " or ".join(dict.fromkeys(names))

    def way(self, thing: str, usual: str) -> str:
        """Returns the platform's remedy for a thing that is missing or wrong, or the usual one."""
        return str(self.platform.get("ways", {}).get(thing, usual))

    def setter(self, name: str) -> str:
        return "you" if name in ("NNODES", *self.platform.get("yours", ())) else str(self.platform["by"])


# -- the place ------------------------------------------------------------------------------------------------
def is_set(name: str, environ: "Mapping[str, str]") -> bool:
    return value_of(name, environ)[1] is not None


def fits(table: "dict[str, Any]", environ: "Mapping[str, str]") -> bool:
    if any(is_set(name, environ) for name in table.get("unless", ())):
        return False
    if "marks" in table:
        return any(is_set(name, environ) for name in table["marks"])
    return all(is_set(name, environ) for name in table["signs"])


def table_of(environ: "Mapping[str, str]", name: "str | None", sized: bool) -> "dict[str, Any]":
    """Returns the platform's table. name: the only platform to consider. sized: the command line has the number of
    nodes, so no table is needed. Raises Refused if no table fits, or if a launcher has started this process."""
    named = [table for table in PLATFORMS if name in (None, table["name"])]
    loosely = [table for table in named if any(is_set(name, environ) for name in table.get("loose", ()))]
    table = next((table for table in named if fits(table, environ)), loosely[0] if loosely else None)
    child = [each for each in CHILD if environ.get(each) and each not in (table or {}).get("own", ())]
    if child:
        why = "%s is set: this is a process below a launcher already, not a container" % child[0]
        raise Refused(why, "start this instead of torchrun, mpirun or accelerate, not below it")
    if table is not None:
        return table
    if not named:
        known = ", ".join(dict.fromkeys(it["name"] for it in PLATFORMS))
        raise Refused("no platform %r is known" % name, "there are " + known)
    if name is not None:
        marks = named[-1].get("marks", []) + named[-1].get("loose", [])
        signs = " or ".join(marks) or " and ".join(named[-1]["signs"])
        raise Refused("this is no %s: %s is not set" % (name, signs), "leave out --platform")
    if sized:
        return {"name": "command line", "by": "you", "sure": "given", "origin": "--nnodes"}
    for sign in OUT_OF_REACH:
        if environ.get(sign):
            raise Refused(*OUT_OF_REACH[sign])
    raise Refused(
        "nothing in the environment says how many nodes there are",
        nearly(environ) + "set NNODES, MASTER_ADDR and MASTER_PORT in the platform's form, or give --nnodes 2 "
        "--master-addr HOST",
    )


def nearly(environ: "Mapping[str, str]") -> str:
    """Returns a text about the platform that has the most signs set, and others missing; "" if no sign is set."""
    signed = [table for table in PLATFORMS if "signs" in table and "loose" not in table]
    there = [(sum(is_set(sign, environ) for sign in table["signs"]), table) for table in signed]
    count, table = max(there, key=lambda it: (it[0], -len(it[1]["signs"])))
    missing = [sign for sign in table["signs"] if not is_set(sign, environ)]
    return "%s sets %s, too; " % (table["by"], " and ".join(missing)) if count else ""


def place_of(environ: "Mapping[str, str]", requested: "Mapping[str, str]", platform: "str | None" = None) -> Place:
    """Returns the place. requested: options (GIVEN_AS), which outrank variables. Raises Refused if no platform fits."""
    given = {GIVEN_AS[name]: value for name, value in requested.items()}
    table = table_of(environ, platform, "nodes" in given)
    if given.get("nodes") in ("1", "1:1"):  # a run of one node meets no other container of the platform
        table = {key: value for key, value in table.items() if key not in ("rank", "master", "alike", "several")}
    place = Place(table)
    for thing in ("nodes", "least", "most", "rank", "each", "master", "port", "job"):
        if thing in given:
            option = next(name for name, its in GIVEN_AS.items() if its == thing)
            place.given[thing] = "--" + option.replace("_", "-"), given[thing]
        elif not (thing in ("least", "most") and "nodes" in given):
            for variable in table.get(thing, ()):
                name, text = value_of(variable, environ)
                if text is not None and not place.given.get(thing, ("", ""))[1]:
                    place.given[thing] = name, text
    take_in(place)
    compare(place, environ)
    return place


def written(where: str, text: str) -> str:
    """Returns "NAME=TEXT", with a long text cut."""
    return "%s=%s" % (where, text if len(text) <= LONGEST else text[:LONGEST] + "...")


def take_in(place: Place) -> None:
    """Reads the values from the given texts. Adds a mistake for each text that makes no sense."""
    wrong = place.wrong

    def text_of(thing: str) -> "str | None":
        """Returns a thing's text, or None if it is missing, empty or not expanded."""
        if thing not in place.given:
            return None
        where, text = place.given[thing]
        if re.search(r"\$[{(A-Za-z_]|%[A-Z_]+%|^<.*>$", text):
            message = written(where, text) + ": not expanded"
            wrong.append((message, "no shell reads the platform's form: write the value"))
            return None
        if text == "":
            hint = place.way(thing, "is this host in it, and is it whole?")
            wrong.append(("%s does not describe this container" % where, hint))
            return None
        return text

    def number(thing: str, least: int, most: int, what: str) -> "int | None":
        text = text_of(thing)
        if text is None:
            return None
        if not re.match(r"[0-9]{1,9}\Z", text) or not least <= int(text) <= most:
            message = "%s: no %s" % (written(place.given[thing][0], text), what)
            wrong.append((message, "a number from %d to %d" % (least, most)))
            return None
        return int(text)

    nodes = place.given.get("nodes", ("", ""))[1]
    if re.match(r"[^:]+:[^:]+\Z", nodes):
        where = place.given.pop("nodes")[0]
        place.given["least"], place.given["most"] = (where, nodes.partition(":")[0]), (where, nodes.partition(":")[2])
    if "least" in place.given or "most" in place.given:
        for end in ("least", "most"):
            if end not in place.given:
                name = place.platform[end][0]
                wrong.append(("%s is not set, but the other end is" % name, "set %s, or give --nnodes MIN:MAX" % name))
        place.least, place.most = (number(end, 1, MOST_NODES, "number of nodes") or 0 for end in ("least", "most"))
        if place.least > place.most > 0:
            message = "%d nodes at least, and %d at most" % (place.least, place.most)
            wrong.append((message, "%s is the smaller one" % place.given["least"][0]))
    else:
        place.least = place.most = number("nodes", 1, MOST_NODES, "number of nodes") or 0
        if "nodes" not in place.given:
            hint = place.way("nodes", "set %s, or give --nnodes" % place.variables("nodes"))
            wrong.append(("nothing says how many nodes there are: %s is not set" % place.variables("nodes"), hint))
    place.rank = number("rank", 0, MOST_NODES, "node rank")
    if place.rank is not None and place.most and place.rank >= place.most:
        where = place.given["rank"][0]
        count = place.given.get("nodes", place.given.get("most", ("", "")))[0]
        message = "%s=%d, of %d nodes: ranks of nodes begin with 0" % (where, place.rank, place.most)
        wrong.append((message, "does it count processes, or %s? --nnodes and --node-rank outrank them" % count))
    text = text_of("each")
    place.each = text if text in COUNTED else number("each", 1, MOST_RANKS, "number of ranks") if text else None
    place.port = number("port", 1, 65535, "port") or DEFAULT_PORT
    place.job = text_of("job")
    if place.job is not None and not (place.job.isprintable() and len(place.job) <= LONGEST_JOB):
        message = written(place.given["job"][0], place.job) + ": no name of a run"
        wrong.append((message, "up to %d letters, without a line's end" % LONGEST_JOB))
    place.master = master(place, text_of("master"))


def master(place: Place, text: "str | None") -> "str | None":
    if text is None:
        leads = place.rank == 0 and place.platform.get("led")
        if place.most > 1 and "master" not in place.given and not leads:
            hint = place.way("master", "set %s to the first container's name" % place.variables("master"))
            place.wrong.append(("nothing says where %d nodes meet" % place.most, hint))
        return None
    where = place.given["master"][0]
    if text[0] == "[" and text[-1] == "]":
        text = text[1:-1]
    if not re.match(HOST + r"\Z", text):
        message = written(where, text) + ": no host's name or address"
        place.wrong.append((message, "the port is %s's" % place.variables("port")))
    elif place.most > 1 and (text.lower() in ("localhost", "0.0.0.0", "::1", "::") or text.startswith("127.")):
        message = "%s=%s is each container itself" % (where, text)
        place.wrong.append((message, "the first container's name, as the others know it; --master-addr outranks it"))
    return text


def compare(place: Place, environ: "Mapping[str, str]") -> None:
    """Adds mistakes: variables that contradict each other, several processes per node, a missing rank or job."""
    table = place.platform
    each = place.each if isinstance(place.each, int) else 1
    mine = {"nodes": place.most or None, "world": place.most * each or None, "rank": place.rank, "zero": 0, "one": 1}
    mine.update(master=place.master, port=place.port, ranks=mine["world"])  # type: ignore[arg-type]
    alike = table.get("alike", [])
    alike = alike if any(each[0].startswith("NNODES") for each in alike) else [*alike, BY_USER]
    for variable, *things in alike:
        name, other = value_of(variable, environ)
        first = place.given.get(things[0], place.given.get("most" if things[0] == "nodes" else "", ("", "")))[0]
        may = [str(mine[thing]) for thing in things if mine[thing] is not None]
        if other is None or not may or first.startswith("--") or other in may or may_count_ranks(place, things, other):
            continue
        if not place.elastic or things[0] != "nodes" or name == "NNODES":
            held = "%s holds %s" % (name, other or "nothing of this container")
            differ(place, written(name, other) if ":" not in variable else held, first, things[0])
    name, count = value_of(table["several"], environ) if "several" in table else ("", None)
    if count and count.isdigit() and int(count) > 1:
        hint = place.way("several", "one process a node")
        place.wrong.append(("%s processes were started on this node" % written(name, count), hint))
    static = place.most > 1 and not place.elastic
    rankless = is_set(table.get("rankless", ""), environ) or place.given.get("job", ("", ""))[0] == "--rdzv-id"
    if static and "rank" in table and "rank" not in place.given and not rankless:
        name = place.variables("rank")
        hint = place.way("rank", "set %s, or give --node-rank" % name)
        place.wrong.append(("nothing says which of %d nodes this is: %s is not set" % (place.most, name), hint))
    by_name = place.elastic or static and "rank" not in place.given
    if by_name and "job" not in place.given and not table.get("unnamed"):
        hint = place.way("job", "one text for all containers, another for each run")
        place.wrong.append(("nothing distinguishes this run from others: %s is not set" % place.variables("job"), hint))


def may_count_ranks(place: Place, things: "list[str]", count: str) -> bool:
    """Returns whether `count` may be the number of all ranks, because no variable holds the number per node."""
    requested = place.given.get("each", ("", ""))[0].startswith("--")
    counted = isinstance(place.each, int) and not requested
    unknown = "ranks" in things and not counted or "world" in things and requested
    is_count = place.most > 0 and re.match(r"[1-9][0-9]{0,8}\Z", count) is not None
    return unknown and is_count and int(count) % place.most == 0


def differ(place: Place, text: str, first: str, thing: str) -> None:
    """Adds the mistake that two variables differ. first: the name of the one in use. text: the other and its value."""
    names = [re.split("[= ]", it)[0] for it in (text, first)]
    set_by = [place.setter(name) for name in names]
    if thing == "zero":
        message = "%s: another process of this node, by %s" % (text, set_by[0])
    else:
        message = "%s, but %s says %s; " % (text, first, place.given.get(thing, place.given.get("most", ("", "")))[1])
        each = "%s is set by %s, %s by %s" % (names[0], set_by[0], names[1], set_by[1])
        message += "both are set by %s" % set_by[0] if set_by[0] == set_by[1] else each
    option = next((key for key, its in GIVEN_AS.items() if its == thing), "nnodes").replace("_", "-")
    hint = "unset the one that is left over, or give --%s, which outranks both" % option
    place.wrong.append((message, place.way("alike", hint)))


# -- what the machine has -------------------------------------------------------------------------------------
def devices(environ: "Mapping[str, str]") -> "int | None":
    """Returns how many accelerators processes here may use, or None if unknown. Calls nothing that could hang."""
    for name in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in environ:
            return len([one for one in environ[name].split(",") if one.strip() not in ("", "-1", "none", "NoDevFiles")])
    try:
        found = os.listdir("/dev")
    except OSError:
        return None
    return sum(bool(re.match(r"(?:nvidia|davinci)[0-9]+\Z", name)) for name in found) or None


def ranks_here(place: Place, environ: "Mapping[str, str]") -> int:
    """Returns how many ranks this container starts. Adds a mistake to place.wrong if there are too few devices."""
    have = devices(environ)
    each = place.each
    if each is None or each in ("gpu", "auto"):
        if each == "gpu" and not have:
            place.wrong.append(("a rank for each GPU, and there is none here", "--nproc-per-node 1, or ask for GPUs"))
        return have or (os.cpu_count() or 1 if each == "auto" else 1)
    if each == "cpu":
        return os.cpu_count() or 1
    assert isinstance(each, int)
    if have is not None and have < each and each > 1:
        message = "%s=%d, and %d devices here" % (place.given["each"][0], each, have)
        place.wrong.append((message, "ask the platform for as many as there are ranks, or start fewer"))
    return each
