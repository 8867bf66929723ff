"""The files that fleet keeps on a node: each name once, for both halves. files.py describes what they hold.

A file that does not hold what it must (another version's, a damaged one) counts as one that is not there.
"""

import os

MODULES = (".py", ".so")  # how the names of files end that Python imports
HOME = ".fleet"  # in the user's home; the user's alone
RUNS, BUILDS, DATA, SOURCES, WHEELS, IMAGES = "runs", "builds", "data", "sources", "wheels", "images"
IMPORTS = "imports.json"
FETCHED = "brought"  # on the head
HEALTH = "health"  # on the head: what checks have found of GPUs
SOURCE_IDS = "source-ids"  # on the head: what it knows sources by
WAITING = "waiting"  # on the head: launches that wait for hosts, in order of arrival
DELIVERIES = "deliveries"  # on the head: what it delivered last of each

# in RUNS/RUN, or RUNS/RUN@NODE where nodes share a home
RUN_MARK = "FLEET_RUN_ID"  # in the environment of all processes of a run
SCOPE = "FLEET_SCOPE"  # in the environment of all that a job of a scheduler holds
SPEC, STATUS, PID, NODE_LOG = "spec.json", "status.json", "pid", "node.log"
METRICS = "metrics.jsonl"  # it comes to the head as a log does
# what such a run is while its head waits with the next attempt, and while that one begins
RESTARTING, STARTING = "restarting", "starting"
# Of what a run leaves: its folder on a node, which has the number in SPEC, and its events. Of a run of another number a
# fleet reads LISTED, the attempt, the state, the processes and the logs: it lists the run, shows its logs and stops it,
# and refuses all else.
PROTOCOL = 1
LISTED = ("run", "node", "protocol", "host", "node_rank", "ranks", "lease")  # of SPEC
LATEST = "latest"  # the run that was requested last, as a name, and as a link next to its folder
WRITER = ".lock"  # in a run's folder on the head: who writes there holds it
STATE = "state.json"  # next to it: what is done with the run
FINAL = ("exited", "stopped", "lost")  # how a run may have ended on a node: "state" of its STATUS
LEASE, STOP, OVER, NEXT, TRIMMED = "lease", "stop", "over", "next", "trimmed"
VERDICT = "verdict.json"
ATTEMPT = "attempt"  # and its number: the folder of one that another followed, on nodes and on the head
COMMAND, TIMES = "command.json", "times"
CALLS = "calls"  # and the rank: the dump of its flight recorder
ARMED = "arm/sitecustomize.py"
RANK_WRAPPER, ENDED_WRAPPER = b"fleet-rank\n", b"fleet-ended\n"  # rank.py calls itself so, and once its rank has ended
# in a run's folder, next to each rank: file -> module of node/run/rank
OF_RANKS = {name + ".py": name for name in ("rank", "drain", "watch", "spawn", "console")}
OF_RANKS[ARMED] = "arm"
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
LONGEST_NAME = 48

# what remembers a delivery: in its destination, or next to it as .NAME + this
CODE_STATE, DATA_STATE = ".fleet-sync", ".fleet-data"
STAGE_THERE = ".fleet-stage"  # ends the name of a folder on a file system that is mounted in a destination
GET_STAGE = ".fleet-get"  # what has come of a get that is not whole yet
# the file by which a source is known; ends the name of an empty folder in it while a sync is under way
SOURCE_MARK = ".fleet-source"
STATE_FOLDERS = (CODE_STATE, DATA_STATE, STAGE_THERE, GET_STAGE, SOURCE_MARK)
# .gitignore of runs/ and builds/ on the head
OF_THE_HEAD = "*\n# fleet's own: neither git nor a sync takes this folder along\n"
LOCK = "lock"
INSTALL_LOCK = ".fleet-install.lock"  # next to the packages of an interpreter


def run_name(run: str) -> "str | None":
    """The name in a run's id, NAME-YYYYMMDD-HHMMSS-XXXX with four hexadecimal digits; None for what is no run's id, as
    "latest" is none. Without re, which takes some time to import."""
    name, *stamp = run.rsplit("-", 3)
    shaped = [len(part) for part in stamp] == [8, 6, 4] and frozenset("0123456789").issuperset(stamp[0] + stamp[1])
    if not shaped or not frozenset("0123456789abcdef").issuperset(stamp[2]):
        return None
    fits = 0 < len(name) <= LONGEST_NAME and name[0] not in ".-" and NAME_CHARACTERS.issuperset(name)
    return name if fits else None


def is_run_id(run: str) -> bool:
    return run_name(run) is not None


def is_log(name: str) -> bool:
    """Returns whether a run's log is called so: node.log, metrics.jsonl, rank0.out, rank0.err. re takes longer to
    import than all that some programs do."""
    rank, number, ending = name[:4], name[4:-4], name[-4:]
    of_rank = rank == "rank" and ending in (".out", ".err") and len(number) < 10
    return name in (NODE_LOG, METRICS) or of_rank and number != "" and frozenset("0123456789").issuperset(number)


def meet(mine: "list[int] | tuple[int, ...] | None", theirs: "list[int] | None") -> bool:
    """Is true where two runs would share GPUs, or all else, where one has no GPUs of its own (None)."""
    return mine is None or theirs is None or bool(set(mine).intersection(theirs))


def below_home(*names: str) -> str:
    """A path below ~/.fleet on this machine."""
    return os.path.join(os.path.expanduser("~"), HOME, *names)
