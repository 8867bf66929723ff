"""Names the files that fleet keeps on a node, once for both halves. files.py describes their contents.

A file with invalid content (another version's, a damaged one) counts as missing.
"""

import os

MODULES = (".py", ".so")  # suffixes of the files that Python imports
HOME = ".fleet"  # in the user's home; only the user may read it
RUNS, BUILDS, DATA, SOURCES, WHEELS, IMAGES = "runs", "builds", "data", "sources", "wheels", "images"
IMPORTS = "imports.json"
FETCHED = "brought"  # on the head
HEALTH = "health"  # on the head: the checks' findings about GPUs
SOURCE_IDS = "source-ids"  # on the head: ids of sources
WAITING = "waiting"  # on the head: launches that wait for hosts, in order of arrival
DELIVERIES = "deliveries"  # on the head: the last delivery of each source

# in RUNS/RUN, or RUNS/RUN@NODE where nodes share a home
RUN_MARK = "FLEET_RUN_ID"  # in the environment of all processes of a run
SCOPE = "FLEET_SCOPE"  # variable in the environment of all processes of a scheduler's job
SPEC, STATUS, PID, NODE_LOG = "spec.json", "status.json", "pid", "node.log"
METRICS = "metrics.jsonl"  # fetched to the head in the way of logs
# states of a run while its head waits before the next attempt, and while that one begins
RESTARTING, STARTING = "restarting", "starting"
# The version of a run's folder on a node (the number is in SPEC) and of its events. Of a run with another number, fleet
# reads only LISTED, the attempt, the state, the processes and the logs. It lists the run, shows its logs and stops it,
# and refuses everything else.
PROTOCOL = 1
LISTED = ("run", "node", "protocol", "host", "node_rank", "ranks", "lease")  # fields of SPEC
LATEST = "latest"  # names the run that was requested last, and the link to its folder
WRITER = ".lock"  # in a run's folder on the head: a lock that its writer holds
STATE = "state.json"  # next to it: what a process does with the run
FINAL = ("exited", "stopped", "lost")  # how a run may have ended on a node: "state" of its STATUS
LEASE, STOP, OVER, NEXT, TRIMMED = "lease", "stop", "over", "next", "trimmed"
VERDICT = "verdict.json"
ATTEMPT = "attempt"  # with its number: folder of an attempt that another one followed, on nodes and on the head
COMMAND, TIMES = "command.json", "times"
CALLS = "calls"  # with the rank: the dump of its flight recorder
ARMED = "arm/sitecustomize.py"
RANK_WRAPPER, ENDED_WRAPPER = b"fleet-rank\n", b"fleet-ended\n"  # rank.py's names, before and after its rank's end
# in a run's folder, next to each rank: file -> module of node/run/rank
OF_RANKS = {name + ".py": name for name in ("rank", "drain", "watch", "spawn", "console")}
OF_RANKS[ARMED] = "arm"
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
LONGEST_NAME = 48

# records of a delivery: in its destination, or next to it as .NAME + this
CODE_STATE, DATA_STATE = ".fleet-sync", ".fleet-data"
STAGE_THERE = ".fleet-stage"  # ends the name of a folder on a file system that is mounted in a destination
GET_STAGE = ".fleet-get"  # received parts of a get that is not complete yet
# the file with a source's id; also the end of the name of an empty folder in it during a sync
SOURCE_MARK = ".fleet-source"
STATE_FOLDERS = (CODE_STATE, DATA_STATE, STAGE_THERE, GET_STAGE, SOURCE_MARK)
# text of .gitignore in runs/ and builds/ on the head
OF_THE_HEAD = "*\n# fleet's own: neither git nor a sync takes this folder along\n"
LOCK = "lock"
INSTALL_LOCK = ".fleet-install.lock"  # next to the packages of an interpreter


def run_name(run: str) -> "str | None":
    """Returns the name in a run's id; None if the text is no run's id ("latest" is none). An id is
    NAME-YYYYMMDD-HHMMSS-XXXX with four hexadecimal digits. It does not use re, which is slow to import."""
    name, *stamp = run.rsplit("-", 3)
    shaped = [len(part) for part in stamp] == [8, 6, 4] and frozenset("0123456789").issuperset(stamp[0] + stamp[1])
    if not shaped or not frozenset("0123456789abcdef").issuperset(stamp[2]):
        return None
    fits = 0 < len(name) <= LONGEST_NAME and name[0] not in ".-" and NAME_CHARACTERS.issuperset(name)
    return name if fits else None


def is_run_id(run: str) -> bool:
    return run_name(run) is not None


def is_log(name: str) -> bool:
    """Returns whether this is the name of a run's log: node.log, metrics.jsonl, rank0.out, rank0.err. It does not use
    re, which takes longer to import than some programs run."""
    rank, number, ending = name[:4], name[4:-4], name[-4:]
    of_rank = rank == "rank" and ending in (".out", ".err") and len(number) < 10
    return name in (NODE_LOG, METRICS) or of_rank and number != "" and frozenset("0123456789").issuperset(number)


def meet(mine: "list[int] | tuple[int, ...] | None", theirs: "list[int] | None") -> bool:
    """Returns whether two runs would share GPUs. A run without GPUs of its own (None) shares everything."""
    return mine is None or theirs is None or bool(set(mine).intersection(theirs))


def below_home(*names: str) -> str:
    """Returns a path below ~/.fleet on this machine."""
    return os.path.join(os.path.expanduser("~"), HOME, *names)
