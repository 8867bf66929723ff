"""The options of a container's part, once for `python3 fleet.pyz` and `fleet launch --on env`."""

import argparse
import os

from fleet.node.base.types import Any, Sequence

# name -> (what its value is called, what it takes, the default, the help); `fleet launch` has those of FLEETS by itself
ROWS: "dict[str, tuple[str, Any, Any, str]]" = {
    "nnodes": ("N|MIN:MAX", str, None, "instead of what the platform sets"),
    "node-rank": ("N", str, None, "this container's, instead of what the platform sets"),
    "nproc-per-node": ("N|auto|gpu|cpu", str, None, "ranks here, instead of what the platform sets"),
    "master-addr": ("ADDR", str, None, "where all meet, instead of what the platform sets"),
    "master-port": ("PORT", str, None, "its port"),
    "rdzv-id": ("ID", str, None, "distinguishes this run from others, instead of what the platform sets"),
    "platform": ("NAME", str, None, "whose variables these are, where several would fit"),
    "engine": ("NAME", str, "torchrun", "what starts the ranks [torchrun]"),
    "engine-arg": ("ARG", [str], (), "an option of the engine's own; write --engine-arg=--OPTION"),
    "python": ("PATH", str, "python3", "the training interpreter [python3]"),
    "workdir": ("DIR", str, None, "where the script runs [here]"),
    "env": ("K=V", [str], (), "set K to V for the ranks"),
    "runs-dir": ("DIR", str, "runs", "where logs go [runs]"),
    "name": ("NAME", str, None, "the run's name [the script's]"),
    "grace": ("S", float, None, "between SIGTERM and SIGKILL [25 after the platform's SIGTERM, 10 after a failure]"),
    "node-timeout": ("S", float, 15.0, "seconds of silence after which a container is lost [15]"),
    "max-restarts": ("N", int, 0, "restarts of all ranks after a failure"),
    "stall-timeout": ("S", float, None, "end the run when no rank has written anything for so long [never]"),
    "wait": ("S", float, 600.0, "for the other containers [600]"),
    "secret-file": ("FILE", str, None, "what only the containers of this run know, where FLEET_SECRET is not set"),
}
FLEETS = (
    "node-rank",
    "rdzv-id",
    "platform",
    "wait",
    "secret-file",
)  # of those, what `fleet launch` has for --on env only


def field(name: str) -> str:
    """Returns what an option is called in the program."""
    return "engine_args" if name == "engine-arg" else name.replace("-", "_")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="fleet.pyz",
        usage="python3 fleet.pyz [OPTIONS] SCRIPT [ARGS...] | python3 fleet.pyz explain-env [--json]",
        description="Start SCRIPT in this container, with those that the platform started elsewhere.",
    )
    for name, (metavar, kind, _, text) in ROWS.items():
        many = isinstance(kind, list)
        kinds: dict[str, Any] = {"type": kind[0], "action": "append"} if many else {"type": kind}
        made.add_argument("--" + name, dest=field(name), metavar=metavar, help=text, **kinds)
    made.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    made.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def read(argv: "Sequence[str]") -> Any:
    """Returns what is typed, as of(). Exits with 2 where it makes no sense."""
    made = parser()
    found = vars(made.parse_args(list(argv)))
    command, env = found.pop("words"), found.pop("env") or ()
    if not command:
        made.error("SCRIPT is missing")
    odd = [pair for pair in env if "=" not in pair]
    if odd:
        made.error("--env %s: write NAME=VALUE" % odd[0])
    for name in ("grace", "node_timeout", "stall_timeout", "wait", "max_restarts"):
        if found[name] is not None and not 0 <= found[name] < 1e9:
            made.error("--%s %s: no number from 0 on" % (name.replace("_", "-"), found[name]))
    given = {name: value for name, value in found.items() if value is not None}
    return of(dict(given, env=dict(pair.partition("=")[::2] for pair in env)), command[0], command[1:])


def of(given: "dict[str, Any]", script: str, args: "Sequence[str]") -> Any:
    """Returns the options of a container's part, each as an attribute. given: those that are, by their names."""
    options = {field(name): row[2] for name, row in ROWS.items()}
    options.update({"module": False, "engine_options": {}, "workdir": os.getcwd()}, **given)
    return argparse.Namespace(script=script, args=list(args), **options)
