"""The events of a run, each kind once: docs/json.md is made from it, and a test holds that the code emits these alone.

A new kind is a line here, words in backticks are its fields. Kinds and fields may be added while VERSION stays; what is
taken away, or means something else, makes another VERSION.
"""

from __future__ import annotations

VERSION = 1
# in events.jsonl, and on stdout with --json
BOTH = {
    "version": "the first: `version` of these events, `fleet`'s own",
    "plan": "what is started where: as `--dry-run` shows it",
    "differs": "something is not as it was in the `run` that this one repeats: `hint`",
    "running": "all nodes have started: `world_size`, `first_ranks` (of each host), `logs`",
    "attached": "a head follows it that did not start it: `version`, `engine`, `world_size`, `first_ranks`, `logs`, "
    "`state`, `started` (when)",
    "status": "a node's state changed: `state`; behind its end `reason`, `engine_status`, `signal`, `left` (pids that "
    "would not die), `disk_full`",
    "rank": "a rank ended: `rank`, `node_rank`, `local_rank`, `status`, `signal`, `attempt`",
    "advice": "the run tells of a mistake that ends nothing, or of its silence: `id`, `remedy`",
    "stalled": "no rank has written anything for as long as --stall-timeout says: `seconds`, `ranks` (that run)",
    "stacks": "where silent ranks stand: `places`, each with its `ranks`, `hosts`, `at`, `odd`; `file`: their stacks",
    "went-on": "a run that was told as stalled goes on",
    "build-lock": "ranks wait for `locks` that nobody holds any more",
    "dropped": "the connection to a node was lost: `reason`; it is tried again",
    "resumed": "it is back",
    "blocked": "this machine's disk takes no logs: `reason`",
    "unblocked": "it does again",
    "full": "a node's disk is full: what its ranks write waits for room, and is lost if that lasts",
    "room": "there is room again",
    "gap": "so many `bytes` that a `rank` wrote are in no log, as its node's disk did not take them, or so many of a "
    "log (`file`) are not here, as its node keeps no more",
    "alone": "all nodes are silent at once, and are waited for",
    "lost": "a node is given up: `kind` of the error",
    "unknown": "a node is silent, and who only looks on ends nothing for that: `kind` of the error",
    "away": "an elastic run goes on without a node: `left`, how many there are now",
    "back": "that node takes part again: `attempt` of its part of the run",
    "stop": "all nodes are being stopped: `reason`, `grace`",
    "restart": "all ranks will be started again: `attempt`, which of `max_restarts` it is (`restart`), and what ended "
    "the last one: `rank`, `exit_code`, `signal`, `what`, `seconds`, `log`; `replaced`: the hosts in whose place "
    "spares are, each with the reason",
    "left-out": "a host is not fit for the run, or for another attempt: a spare takes its place, or an elastic run "
    "begins without it; `kind` of the error; `spare`: who takes its place",
    "attempt": "they have been: `attempt`, `master`, `world_size`, `first_ranks`, `started` (when the run was)",
    "no-restart": "they could not be",
    "stubborn": "a node did not stop in time",
    "incomplete": "a node's logs are not complete here",
    "janitor": "a process stays behind that ends the run on a node",
    "superseded": "another process, elsewhere, leads the run now; this one only looks on",
    "detached": "the run goes on by itself; process `pid` collects its logs",
}
STREAM = {
    "finding": "preflight found something: the rule's `id`, `severity`, `hosts`, `message`, `hint`",
    "unreachable": "nothing was started, as a host did not answer: `kind` of the error, `message`, `hint`",
    "not-synced": "nothing was started, as a host did not take the code: `kind`, `message`, `hint`",
    "not-started": "everything was stopped again, as a host did not start: `kind`, `message`, `hint`",
    "not-ready": "no other attempt begins, as a host is not ready for it: `kind`, `message`, `hint`",
    "step": "sync, preflight, start are through: `step`, `hosts`, `seconds`",
    "notice": "something else worth saying: `level`, `message`, `hint`",
    "summary": "the last line, with all that is below",
}
FILE = {
    "started": "a node has started: `pid` of its supervisor, `folder` there, `attempt` where it is not the first",
    "kept": "process `pid` follows the run from here on",
    "cleaned": "a process that stayed behind has ended the run on a node: `complete` where its logs are, too",
    "summary": "the run is over: `exit_code`, `first_failure`",
}
