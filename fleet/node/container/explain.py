"""Implements `fleet explain-env`: shows what a platform's variables mean for this container, what is wrong with them,
and which launcher commands start the same run."""

import os
from shlex import quote

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Mapping, Sequence
from fleet.node.base.wire import at_port
from fleet.node.container.options import GIVEN_AS, OF_PLACE, Parser
from fleet.node.container.place import DEFAULT_PORT, Place, place_of, ranks_here
from fleet.node.container.record import plain

SCRIPT = ("train.py",)
SURE = {
    "source": "read in its own code",
    "documented": "as its documentation has it",
    "notes": "as users noted it",
    "seen": "seen live",
    "given": "as given",
}


def about(
    environ: "Mapping[str, str]",
    requested: "Mapping[str, str]",
    platform: "str | None" = None,
    script: "Sequence[str]" = SCRIPT,
) -> "dict[str, Any]":
    """Returns the document of --json. requested, platform: see place_of(). script: the command of a rank. Raises
    Refused if no platform is known by these variables."""
    place = place_of(environ, requested, platform)
    ranks = ranks_here(place, environ)
    return {
        "platform": place.platform["name"],
        "sure": place.platform["sure"],
        "origin": place.platform["origin"],
        "nodes": {"least": place.least, "most": place.most},
        "node_rank": place.rank,
        "ranks": ranks,
        "master": place.master,
        "port": place.port,
        "job": place.job,
        "from": {thing: where for thing, (where, _) in sorted(place.given.items())},
        "wrong": [{"message": message, "hint": hint} for message, hint in place.wrong],
        "by_hand": {} if place.wrong else by_hand(place, ranks, script),
    }


def by_hand(place: Place, ranks: int, script: "Sequence[str]") -> "dict[str, str]":
    """Returns {launcher: the command that starts the same ranks in this container}. ranks: their number."""
    master, port, rank = place.master or "127.0.0.1", str(place.port), place.rank
    nodes = "%d:%d" % (place.least, place.most) if place.elastic else str(place.most)
    torchrun = ["torchrun", "--nnodes=" + nodes, "--nproc-per-node=%d" % ranks]
    if place.elastic or rank is None and place.most > 1:
        torchrun += [
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=" + at_port(master, port),
            "--rdzv-id=%s" % (place.job or "none"),
        ]
    else:
        torchrun += ["--node-rank=%d" % (rank or 0), "--master-addr=" + master, "--master-port=" + port]
    found = {"torchrun": torchrun}
    if not place.elastic and (rank is not None or place.most == 1):
        world = "{%s}" % ",".join('"%d":%s' % (node, list(range(ranks))) for node in range(place.most))
        import base64

        found["accelerate"] = [
            *["accelerate", "launch", "--num_machines", str(place.most), "--num_processes", str(place.most * ranks)],
            *["--machine_rank", str(rank or 0), "--main_process_ip", master, "--main_process_port", port],
        ]
        found["deepspeed"] = [
            *["python3", "-m", "deepspeed.launcher.launch", "--node_rank=%d" % (rank or 0)],
            "--world_info=" + base64.urlsafe_b64encode(world.encode()).decode(),
            *["--master_addr=" + master, "--master_port=" + port],
        ]
    return {name: " ".join(map(quote, [*argv, *script])) for name, argv in found.items()}


def lines(found: "dict[str, Any]") -> "list[str]":
    """Returns the document as text. The third column is the variable that a value comes from."""
    where_set = found["from"]
    least, most = found["nodes"]["least"], found["nodes"]["most"]

    def row(what: str, value: object, *things: str) -> str:
        where = ", ".join(dict.fromkeys(where_set[thing] for thing in things if thing in where_set))
        return "%-10s %-24s %s" % (what, "-" if value is None else value, where)

    rows = [
        "platform   %s, %s (%s)" % (found["platform"], SURE[found["sure"]], found["origin"]),
        row("nodes", least if least == most else "%d to %d" % (least, most), "nodes", "least", "most"),
        row("node rank", found["node_rank"], "rank"),
        row("ranks", found["ranks"], "each"),
        row("master", found["master"], "master"),
        row("port", found["port"], "port")
        + ("" if "port" in where_set else "the usual one" * (found["port"] == DEFAULT_PORT)),
        row("run", found["job"], "job"),
    ]
    for wrong in found["wrong"]:
        rows += ["error: " + wrong["message"], "  hint: " + wrong["hint"]]
    if found["by_hand"]:
        rows += ["by hand:"] + ["  " + line for line in found["by_hand"].values()]
    return [line.rstrip() for line in rows]


def show(requested: "Mapping[str, str]", platform: "str | None", as_json: bool, script: "Sequence[str]") -> int:
    """Prints the document. Returns the exit code: 2 if the document has an error, otherwise 0. For parameters, see
    about()."""
    try:
        found = about(os.environ, requested, platform, script)
    except Refused as error:
        found = {"wrong": [{"message": error.message, "hint": error.hint or ""}]}
        shown = ["error: " + error.message, "  hint: %s" % error.hint]
    else:
        shown = lines(found)
    print(json.dumps(found) if as_json else "\n".join(map(plain, shown)))
    return 2 if found["wrong"] else 0


def main(argv: "Sequence[str]") -> int:
    """Runs the zipapp's explain-env. argv: --json, and the options that name this container's place."""
    made = Parser(OF_PLACE, "python3 fleet.pyz explain-env [OPTIONS]", "Show what the platform's variables mean here.")
    made.add_argument("--json", action="store_true", help="a document, for programs")
    found = made.read(argv)
    return show({name: found[name] for name in GIVEN_AS if name in found}, found.get("platform"), found["json"], SCRIPT)
