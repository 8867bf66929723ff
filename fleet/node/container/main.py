"""The command that a platform starts in every container: `python3 fleet.pyz train.py`, or `fleet launch --on env`."""

import argparse
import os
import random
import re
import signal
import sys
import time

from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Callable, Sequence
from fleet.node.container import explain
from fleet.node.container.line import dial, is_here
from fleet.node.container.logs import plain, report
from fleet.node.container.meeting import SILENCE_SECONDS, Table
from fleet.node.container.place import ASKED, Place, place_of, ranks_here
from fleet.node.container.record import Record, check_runs, own_name, started_by
from fleet.node.container.runner import Run
from fleet.protocol.state import LONGEST_NAME

EXIT_USAGE, EXIT_PREFLIGHT = 2, 123
WAIT_SECONDS = 600.0
GRACE = 25.0  # a platform kills 30 s after SIGTERM


class Ended(Exception):
    """By a signal, before the run begins."""

    def __init__(self, number: int) -> None:
        Exception.__init__(self, number)
        self.number = number


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="fleet.pyz",
        usage="python3 fleet.pyz [OPTIONS] SCRIPT [ARGS...] | python3 fleet.pyz explain-env [--json]",
        description="Start SCRIPT under torchrun in this container, with those that the platform started elsewhere.",
    )
    for name in ASKED:
        made.add_argument("--" + name.replace("_", "-"), metavar="X", help="instead of what the platform sets")
    made.add_argument("--platform", metavar="NAME", help="whose variables these are, where several would fit")
    made.add_argument("--python", metavar="PATH", default="python3", help="the training interpreter [python3]")
    made.add_argument("--workdir", metavar="DIR", default=os.getcwd(), help="where the script runs [here]")
    made.add_argument("--runs-dir", dest="runs", metavar="DIR", default="runs", help="where logs go [runs]")
    made.add_argument("--name", metavar="NAME", help="the run's name [the script's]")
    made.add_argument("--grace", type=float, default=GRACE, metavar="S", help="between SIGTERM and SIGKILL [25]")
    made.add_argument("--wait", type=float, default=WAIT_SECONDS, metavar="S", help="for the other containers [600]")
    made.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    made.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def new_run(name: str) -> str:
    """Its id."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".-")[:LONGEST_NAME] or "run"
    return "%s-%s-%04x" % (name, time.strftime("%Y%m%d-%H%M%S"), random.SystemRandom().randrange(1 << 16))


def check(place: Place, options: Any) -> None:
    """What would be found out when the others wait. Refused."""
    script = options.script[0]
    options.name = options.name or os.path.splitext(os.path.basename(script))[0]
    why = check_runs(options.runs)
    if why is not None:
        place.wrong.append(("logs: " + why, "give --runs-dir a folder that may be written to"))
    if not options.module and not os.path.isfile(os.path.join(options.workdir, script)):
        place.wrong.append(("%s is not in %s" % (script, options.workdir), "give its path in the image, or --workdir"))
    import subprocess

    argv = [options.python, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"]
    try:
        if subprocess.call(argv, cwd=options.workdir, stderr=subprocess.DEVNULL):
            place.wrong.append(("%s has no torch" % options.python, "--python names the interpreter that has it"))
    except OSError as error:
        place.wrong.append(("%s: %s" % (options.python, error.strerror), "--python names the training interpreter"))


def main(argv: "Sequence[str]") -> int:
    """Exit: the run's; 2 where what is typed or set makes no sense, 123 where the run could not begin."""
    if list(argv[:1]) == ["explain-env"]:
        return explain.main(argv[1:])
    options = parser().parse_args(list(argv))
    if not options.script:
        parser().print_usage(sys.stderr)
        return EXIT_USAGE
    asked = {name: getattr(options, name) for name in ASKED if getattr(options, name) is not None}
    try:
        place = place_of(os.environ, asked, options.platform)
        ranks = ranks_here(place, os.environ)
        check(place, options)
        if place.wrong:
            for message, hint in place.wrong:
                complain(message, hint)
            return EXIT_USAGE
        return begun(place, ranks, options)
    except Refused as error:
        complain(error.message, error.hint)
        return EXIT_PREFLIGHT
    except Ended as error:
        report("ended by signal %d before the run began" % error.number)
        return 128 + error.number


def begun(place: Place, ranks: int, options: Any) -> int:
    """Meet the others, and run. Refused; Ended while it waits."""

    def waits(number: int, _frame: object) -> None:
        raise Ended(number)

    on_signals(waits)  # the first process of a container gets no signal that it does not handle
    options.script = ["-m"] * options.module + options.script
    about = {"job": place.job, "least": place.least, "most": place.most}
    report("%s: this is %s" % (place.platform["name"], seen(place, ranks)))
    alone = place.most == 1
    leads = alone or place.rank == 0 or (place.rank is None and is_here(place.master or ""))
    master, port, table = "127.0.0.1" if leads else str(place.master), place.port, None
    started = started_by(place.platform["name"], options, place.elastic)
    if leads:
        own = Record(options.runs, new_run(options.name), started)
        table = Table(0 if alone else port, about, own, silent if alone else report)
        port = table.port
    run = None
    try:
        hello = {"host": own_name(), "rank": place.rank, "each": ranks, "about": about}
        line, begin = dial(master, port, hello, options.wait, report)
        record = table.record if table is not None else Record(options.runs, begin["run"], started)
        run = Run(place, ranks, begin, line, options, record)
        return followed(run)
    finally:
        if table is not None and table.begun:
            table.rest(options.grace + 2 * SILENCE_SECONDS, lambda: run is not None and run.signalled)
        elif run is not None:
            run.write_end()


def on_signals(handler: "Callable[[int, object], None]") -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def silent(_message: str) -> None:
    """No report is needed of who meets where there is one."""


def followed(run: Run) -> int:
    """From its start to its end. Refused, which ends all others."""

    def ended_by(number: int, _frame: object) -> None:
        run.signalled = number

    on_signals(ended_by)
    begin = run.begin
    try:
        run.start()
    except (Refused, OSError) as error:
        run.refused(EXIT_PREFLIGHT, str(error))
        raise error if isinstance(error, Refused) else Refused(str(error)) from None
    report("run %s: node %d of %d, logs in %s" % (begin["run"], begin["node"], begin["nodes"], run.target))
    return run.follow()


def seen(place: Place, ranks: int) -> str:
    nodes = "%d to %d nodes" % (place.least, place.most) if place.elastic else "one of %d" % place.most
    rank = "" if place.rank is None else "node rank %d, " % place.rank
    meeting = ", meeting at %s:%d" % (place.master, place.port) if place.most > 1 else ""
    return "%s%s, %d rank%s here%s" % (rank, nodes, ranks, "s" * (ranks != 1), meeting)


def complain(message: str, hint: "str | None") -> None:
    sys.stderr.write("error: %s\n" % plain(message) + ("  hint: %s\n" % plain(hint) if hint else ""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
