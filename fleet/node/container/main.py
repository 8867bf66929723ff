"""Runs the command that a platform starts in each container: `python3 fleet.pyz train.py`, or `fleet launch --on
env`."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

from fleet.node.base import json
from fleet.node.base.clock import CLOCK
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Sequence
from fleet.node.base.wire import at_port
from fleet.node.container import explain
from fleet.node.container.channel import secret_of
from fleet.node.container.dial import MISSED, RETRY_SECONDS, Line, dial
from fleet.node.container.member import Member
from fleet.node.container.options import GIVEN_AS, read
from fleet.node.container.part import program
from fleet.node.container.place import Place, place_of, ranks_here
from fleet.node.container.record import check_runs, plain, report, started_by
from fleet.node.facts.way import is_here, resolve
from fleet.protocol.codes import EXIT_PREFLIGHT, EXIT_USAGE
from fleet.protocol.state import LONGEST_NAME

GRACE, STOP_GRACE = 10.0, 25.0  # after a failure; after SIGTERM from a platform, which kills 30 s later
LEADER_SECONDS = 15.0  # so long the coordinator may take to end after this part


class Ended(Exception):
    """Is raised by a signal that comes before the run begins. number: of that signal."""

    def __init__(self, number: int) -> None:
        Exception.__init__(self, number)
        self.number = number


def new_run(name: str) -> str:
    """Returns the id of a new run of this name."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".-")[:LONGEST_NAME] or "run"
    return "%s-%s-%04x" % (name, time.strftime("%Y%m%d-%H%M%S"), random.SystemRandom().randrange(1 << 16))


def check(place: Place, options: Any) -> None:
    """Adds to place.wrong the mistakes that would otherwise show only after the containers have met."""
    script = options.script
    options.name = options.name or os.path.splitext(os.path.basename(script))[0]
    why = check_runs(options.runs_dir)
    if why is not None:
        place.wrong.append(("logs: " + why, "give --runs-dir a folder that may be written to"))
    there = os.path.isfile(os.path.join(options.workdir, script))
    if not (options.module or there or options.engine == "command" and shutil.which(script)):
        place.wrong.append(("%s is not in %s" % (script, options.workdir), "give its path in the image, or --workdir"))
    if place.elastic and options.engine != "torchrun":
        place.wrong.append(
            ("--engine %s is not elastic" % options.engine, "--engine torchrun is; or a number of nodes")
        )
    if options.engine == "command":
        return
    argv = [options.python, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"]
    try:
        if subprocess.call(argv, cwd=options.workdir, stderr=subprocess.DEVNULL):
            place.wrong.append(("%s has no torch" % options.python, "--python names the interpreter that has it"))
    except OSError as error:
        place.wrong.append(("%s: %s" % (options.python, error.strerror), "--python names the training interpreter"))


def main(argv: "Sequence[str]") -> int:
    """Returns the run's exit code; 2 if options or variables make no sense; 123 if the run could not begin."""
    if list(argv[:1]) == ["explain-env"]:
        return explain.main(argv[1:])
    return run_here(read(argv))


def run_here(options: Any) -> int:
    """Does the same as main(), with options that are read already. options: see options.py."""
    given = {name: getattr(options, name) for name in GIVEN_AS if getattr(options, name) is not None}
    try:
        place = place_of(os.environ, given, options.platform)
    except Refused as error:
        complain(error.message, error.hint)
        return EXIT_USAGE
    try:
        ranks = ranks_here(place, os.environ)
        check(place, options)
        if place.wrong:
            for message, hint in place.wrong:
                complain(message, hint)
            return EXIT_USAGE
        return run_part(place, ranks, options)
    except Refused as error:
        complain(error.message, error.hint)
        return EXIT_PREFLIGHT
    except Ended as error:
        report("ended by signal %d before the run began" % error.number)
        return 128 + error.number


def run_part(place: Place, ranks: int, options: Any) -> int:
    """Meets the other containers, runs this container's part, and returns the exit code. ranks: how many this container
    starts. Raises Refused if this part cannot begin, and Ended if a signal comes before the run begins."""
    member = None

    def signalled(number: int, _frame: object) -> None:
        if member is None or not member.begin:
            raise Ended(number)
        member.signalled = number

    for number in (signal.SIGTERM, signal.SIGINT):  # the kernel sends pid 1 only signals that it handles
        signal.signal(number, signalled)
    secret = secret_of(os.environ, options.secret_file)
    about = {"job": place.job, "least": place.least, "most": place.most}
    report("%s: this is %s" % (place.platform["name"], seen(place, ranks)))
    started = started_by(place.platform["name"], options)
    alone = place.most == 1
    leads = alone or (leads_by_name(place, options.wait) if place.rank is None else place.rank == 0)
    master, port, leader = "127.0.0.1" if leads else str(place.master), place.port, None
    stop_grace = STOP_GRACE if options.grace is None else options.grace
    options.grace = GRACE if options.grace is None else options.grace
    if leads:
        spec = {"run": new_run(options.name), "runs": options.runs_dir, "started": started, "about": about}
        spec.update(port=0 if alone else port, secret=secret and secret.hex(), engine=options.engine)
        spec.update(
            {name: getattr(options, name) for name in ("grace", "node_timeout", "max_restarts", "stall_timeout")}
        )
        leader, port = start_coordinator(dict(spec, stop_grace=stop_grace))

    def to_all(hello: "dict[str, Any]") -> Line:
        wait = options.node_timeout if "token" in hello else options.wait
        return dial(master, port, secret, hello, wait, report, CLOCK)

    hello = {"host": own_name(), "rank": place.rank, "each": ranks, "about": about}
    member = Member(to_all, hello, options, started)
    try:
        return member.run()
    finally:
        if leader is not None:
            leave(leader)


def own_name() -> str:
    """Returns this container's name. The run uses this name, too, unless another container has the same one."""
    return os.uname()[1].partition(".")[0]


def leads_by_name(place: Place, wait: float) -> bool:
    """Returns whether the master's name is this container's. The name of a service may resolve some time after its
    container has begun, so this waits up to `wait` seconds. Raises Refused if the name does not resolve by then."""
    master, began = str(place.master), CLOCK.monotonic()
    reported = False
    while master.partition(".")[0] != own_name() and not is_here(master):
        try:
            resolve(master)
            return False
        except OSError as error:
            why = "%s does not resolve: %s" % (master, error.strerror or error)
        if CLOCK.monotonic() >= began + wait:
            raise Refused("within %g s %s" % (wait, why), MISSED)
        if not reported:
            report("waiting for %s, where all meet: %s" % (master, why))
            reported = True
        CLOCK.sleep(RETRY_SECONDS)
    return True


def start_coordinator(spec: "dict[str, Any]") -> "tuple[subprocess.Popen[bytes], int]":
    """Starts the coordinator. Returns (its process, the port where all meet). Raises Refused if it cannot lead the run,
    for instance because the port is not free. spec: see coordinator.py."""
    leader = program("fleet.node.container.coordinator")
    assert leader.stdin and leader.stdout
    leader.stdin.write(json.dumps(spec).encode() + b"\n")
    leader.stdin.flush()
    message = json.loads(leader.stdout.readline().decode("utf-8") or "{}")
    if "port" not in message:
        raise Refused(str(message.get("refused", "what leads the run did not begin")), message.get("hint"))
    return leader, int(message["port"])


def leave(leader: "subprocess.Popen[bytes]") -> None:
    """Waits until the coordinator has written the run's record and ended. Kills it after LEADER_SECONDS."""
    assert leader.stdin
    leader.stdin.close()
    try:
        leader.wait(LEADER_SECONDS)
    except subprocess.TimeoutExpired:
        leader.kill()
        leader.wait()


def seen(place: Place, ranks: int) -> str:
    nodes = "%d to %d nodes" % (place.least, place.most) if place.elastic else "one of %d" % place.most
    rank = "" if place.rank is None else "node rank %d, " % place.rank
    where = at_port(place.master or "this container", place.port)
    meeting = ", meeting at " + where if place.most > 1 else ""
    return "%s%s, %d rank%s here%s" % (rank, nodes, ranks, "s" * (ranks != 1), meeting)


def complain(message: str, hint: "str | None") -> None:
    sys.stderr.write("error: %s\n" % plain(message) + ("  hint: %s\n" % plain(hint) if hint else ""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
