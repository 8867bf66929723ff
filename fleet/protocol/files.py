"""Defines the files that fleet keeps on a node; docs/files.md is made from it."""

from fleet.protocol.state import (
    ARMED,
    ATTEMPT,
    BUILDS,
    CALLS,
    CODE_STATE,
    COMMAND,
    DATA,
    DATA_STATE,
    HOME,
    IMAGES,
    IMPORTS,
    LEASE,
    LOCK,
    METRICS,
    NEXT,
    NODE_LOG,
    OVER,
    PID,
    RUNS,
    SOURCES,
    SPEC,
    STAGE_THERE,
    STATUS,
    STOP,
    TIMES,
    TRIMMED,
    VERDICT,
    WHEELS,
)

FOLDERS = (
    (
        f"~/{HOME}/{RUNS}/RUN/",
        "a run. When one starts, the 20 newest that have ended are kept, 1 GB at most, 30 days at most. "
        "Where nodes share a home folder, the second has `RUN@NODE/`; "
        "`RUN@NODE.stop` forbids a run that was stopped before it began, or between two attempts",
    ),
    (f"~/{HOME}/{DATA}/", "notes of data that came, JSON: node, target, state folder, whether all of it is there"),
    (
        f"~/{HOME}/{WHEELS}/",
        "wheels that were sent here (`SET-HEAD/`), which of them were verified, and which an install began and did "
        "not (`verified/`), locks of installs",
    ),
    (
        f"~/{HOME}/{IMAGES}/",
        "archives of container images: sent here and not loaded yet, or saved here and not sent yet; JSON: digests of "
        "`.sif` and `.sqsh` files, so that `fleet check` need not read them again",
    ),
    (f"~/{HOME}/{IMPORTS}", "JSON: digests of what interpreters could import, so that preflight need not try it again"),
    (f"~/{HOME}/{SOURCES}/NAME-KEY/, ~/{HOME}/{BUILDS}/BUILD/", "source trees and builds of `fleet build`"),
    (
        f"{CODE_STATE}/, {DATA_STATE}/",
        "in a destination, or next to it as `.NAME` and this: what a sync delivered, and what is staged of one that "
        "was interrupted",
    ),
    (
        f".KEY{STAGE_THERE}/",
        "where a file system is mounted inside a destination: what is staged for that, or was put aside there",
    ),
)
OF_A_RUN = (
    (SPEC, "JSON: the request; of variables the names only"),
    (PID, "JSON: the supervisor and its guardian, pid and start time, and the boot they belong to"),
    (STATUS, "JSON: the state of the run on this node, or how it ended"),
    (COMMAND, "JSON: the training command, as `spawn.py` starts it"),
    ("accelerate.yaml", "the configuration of `--engine accelerate`, as it lies where the launch was typed"),
    (
        "console.py, spawn.py, rank.py, drain.py, watch.py",
        "the programs that start the engine and its ranks, collect what these print, and note their ends",
    ),
    (f"{NODE_LOG}, rank<R>.out, rank<R>.err", "what the engine and the ranks printed, to the byte"),
    (
        METRICS,
        "a JSON line each 10 s (`--sample`): what the node's GPUs, network and CPUs do. After each 4 MiB the time "
        "between two lines doubles",
    ),
    ("rank<R>.json", "JSON: how that rank ended, on each attempt"),
    (f"{ARMED}, rank<R>.stack", "has a python rank report where it is (`fleet stacks`), and its report"),
    (
        f"{CALLS}<R>, {CALLS}<R>.pipe",
        "with `--flight-recorder`: the dump that a rank's torch wrote, and how one is requested",
    ),
    ("builds", "the folders where torch builds extensions, a line each"),
    (
        LEASE,
        "its time of change is that of the head's last message; JSON once the run was detached from it",
    ),
    (TIMES, "when its logs grew: a JSON line for a second in which they did, time and sizes; `fleet logs --since`"),
    (
        TRIMMED,
        "JSON: with `--max-log`, by log, where that begins which is still here; the leader has the rest",
    ),
    (STOP, "JSON: that the run is to stop, with its grace and ranks' first signal"),
    (VERDICT, "JSON: how the run ended, as who led it has decided; the first one stays"),
    (f"{ATTEMPT}<K>/", "of a run that was started again: what attempt K left, of these"),
    (OVER, "empty: every rank on every node has ended well, as the head knows"),
    (NEXT, "JSON: the process here by which a head waits with another attempt, or begins it, while it lives"),
)
OF_DELIVERIES = (
    (LOCK, "held by a sync; JSON: which, and whose"),
    (
        "state",
        "a JSON line: manifest's digest, what is left of older ones, the source; then all entries, and what the node "
        "has of each: digest, whose it is, times; packed",
    ),
    ("replaced/STAMP/PATH", "what `--force` or a yes replaced of the node's own; kept for 30 days"),
    ("switching", "JSON: entries that are put in place, and whose; there while old and new are mixed"),
    ("stage/PATH", "a file that has come, or is under way, and is not yet in place"),
    ("blocks/KEY", "the digests of the 4 MiB blocks of a large file that is under way"),
    ("begins", "of code: held by runs that begin, and by a sync while it puts files in place"),
)
