"""Defines the options of a container's part, for both `python3 fleet.pyz` and `fleet launch --on env`."""

import argparse
import os
import sys
from functools import partial

from fleet.node.base.types import Any, Sequence

# name -> (metavar, type, default, help). The type [str]: the option may be repeated. In `fleet launch`, the options in
# FLEETS are for --on env only, and it has the other options for any run. LEAST has the minimum of each number.
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
    "env": ("K=V|K", [str], (), "set K to V for the ranks, or to its value here"),
    "runs-dir": ("DIR", str, "runs", "where logs go [runs]"),
    "name": ("NAME", str, None, "the run's name [the script's]"),
    "grace": ("S", float, None, "between SIGTERM and SIGKILL [25 after the platform's SIGTERM, 10 after a failure]"),
    "node-timeout": ("S", float, 15.0, "seconds of silence after which a container is lost [15]"),
    "max-restarts": ("N", int, 0, "restarts of all ranks after a failure"),
    "stall-timeout": ("S", float, None, "end the run when no rank has written anything for so long [never]"),
    "wait": ("S", float, 600.0, "for the other containers [600]"),
    "secret-file": ("FILE", str, None, "what only the containers of this run know, where FLEET_SECRET is not set"),
}
FLEETS = ("node-rank", "rdzv-id", "platform", "secret-file")
LEAST = {"grace": 0, "node-timeout": 1, "max-restarts": 0, "stall-timeout": 1, "wait": 0}
# options that take precedence over a platform's variables -> the thing that they set (see platforms.py)
GIVEN_AS = {
    "nnodes": "nodes",
    "node_rank": "rank",
    "nproc_per_node": "each",
    "master_addr": "master",
    "master_port": "port",
    "rdzv_id": "job",
}
OF_ENGINE = "of engine "  # prefix of the names of an engine's own options, in the parser
OF_PLACE = ("platform", *(name.replace("_", "-") for name in GIVEN_AS))  # options that explain-env has, too


def field(name: str) -> str:
    """Returns the name of the attribute that holds an option's value."""
    return "engine_args" if name == "engine-arg" else name.replace("-", "_")


def number(name: str, text: str) -> Any:
    """Returns the value of an option that takes a number. Raises argparse.ArgumentTypeError if the text is no number,
    or the number is out of bounds."""
    try:
        value = ROWS[name][1](text)
    except ValueError:
        value = -1
    if not LEAST[name] <= value < 1e9:
        raise argparse.ArgumentTypeError("%s: must be a number, %d or more" % (text, LEAST[name]))
    return value


class Parser(argparse.ArgumentParser):
    """Parses options that are rows of ROWS."""

    def __init__(self, names: "Sequence[str]", usage: str, description: str) -> None:
        argparse.ArgumentParser.__init__(
            self, prog="fleet.pyz", usage=usage, description=description, allow_abbrev=False
        )
        for name in names:
            metavar, kind, _, text = ROWS[name]
            how: dict[str, Any] = {"type": partial(number, name)} if name in LEAST else {}
            self.add(name, text, dest=field(name), metavar=metavar, **{"action": "append"} if kind == [str] else how)

    def add(self, name: str, text: str, **how: Any) -> None:
        """Adds an option, and a hidden spelling of it with underscores. how: arguments of add_argument()."""
        for spelled in dict.fromkeys([name, name.replace("-", "_")]):
            self.add_argument("--" + spelled, help=text if spelled == name else argparse.SUPPRESS, **how)

    def read(self, argv: "Sequence[str]") -> "dict[str, Any]":
        """Returns the options that are given, by attribute name. Exits with 2 if they are invalid."""
        return {name: value for name, value in vars(self.parse_args(list(argv))).items() if value is not None}


def parser() -> Parser:
    usage = "python3 fleet.pyz [OPTIONS] SCRIPT [ARGS...] | python3 fleet.pyz explain-env [--json]"
    made = Parser(list(ROWS), usage, "Start SCRIPT in this container, with those that the platform started elsewhere.")
    made.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name")
    for option in of_engines():
        flag: dict[str, Any] = {"action": "store_const", "const": True}
        how = {"metavar": option.metavar, "choices": option.choices or None}
        made.add(option.name, option.help, dest=OF_ENGINE + option.name, **(how if any(how.values()) else flag))
    made.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def of_engines() -> "list[Any]":
    """Returns the options of fleet's own engines, each once. Returns [] below Python 3.10, which the engines need."""
    if sys.version_info < (3, 10):
        return []
    engines = __import__("fleet.engines", fromlist=["ENGINES"]).ENGINES
    found = {option.name: option for name in engines.own for option in engines.get(name).options}
    return list(found.values())


def read(argv: "Sequence[str]") -> Any:
    """Reads a command line. Returns the options, see of(). Exits with 2 if they are invalid."""
    made = parser()
    found = made.read(argv)
    command = found.pop("words")
    if not command:
        made.error("SCRIPT is missing")
    odd = [pair for pair in found.get("env", ()) if "=" not in pair and pair not in os.environ]
    if odd:
        made.error("--env %s: not set here" % odd[0])
    pairs = [pair if "=" in pair else "%s=%s" % (pair, os.environ[pair]) for pair in found.get("env", ())]
    found["env"] = dict(pair.partition("=")[::2] for pair in pairs)
    own = {name[len(OF_ENGINE) :]: found.pop(name) for name in list(found) if name.startswith(OF_ENGINE)}
    return of(dict(found, engine_options=own), command[0], command[1:])


def of(given: "dict[str, Any]", script: str, args: "Sequence[str]") -> Any:
    """Returns the options of a container's part, each as an attribute. given: values by attribute name. The options
    that are not in it have their defaults."""
    options = {field(name): row[2] for name, row in ROWS.items()}
    options.update({"module": False, "engine_options": {}, "workdir": os.getcwd()}, **given)
    return argparse.Namespace(script=script, args=list(args), **options)
