"""Starts ranks on a node: what an engine is given to run, or an engine itself. Imports no module of fleet. Python 3.6
syntax.

spawn.py                    the engine started one rank: become rank.py with the argv of command.json. The argv
                            comes by file because engines do not leave it alone: torchrun's parser eats options
                            and turns $$ into $, DeepSpeed puts --local_rank where it thinks the script is.
spawn.py FIRST_RANK COUNT   be the engine: start COUNT ranks; the first that fails ends the others. Exits with
                            its status, 128+n for signal n.
spawn.py FIRST_RANK COUNT VARIABLE   the one or the other: where VARIABLE is set, the engine started one rank.
"""

import json
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

HERE = os.path.dirname(os.path.abspath(__file__))


def command() -> "list[str]":
    """A rank's argv; with DeepSpeed's --local_rank where its launcher would have put it."""
    with open(os.path.join(HERE, "command.json"), encoding="utf-8") as f:
        spec = json.load(f)
    # bytes for the kernel, whatever encoding this node's locale makes python believe in
    argv = [os.fsdecode(item.encode("utf-8", "surrogateescape")) for item in spec["argv"]]
    at = spec.get("local_rank_at")
    if at is not None:
        argv.insert(at, "--local_rank=%s" % os.environ.get("LOCAL_RANK", "0"))
    return argv


def become_rank() -> None:
    """Run rank.py in this very process: the engine waits for our pid, and a second interpreter costs time."""
    path = os.path.join(HERE, "rank.py")
    sys.argv = [path] + command()
    with open(path, encoding="utf-8") as f:
        code = compile(f.read(), path, "exec")
    exec(code, {"__name__": "__main__", "__file__": path})


def start(rank: int, local_rank: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if "FLEET_FIRST_RANK" not in os.environ:  # else what is started once a node is no rank, and reads of none
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank))
            become_rank()
        except BaseException as error:
            os.write(2, ("fleet: rank %d did not start: %s\n" % (rank, error)).encode("utf-8", "replace"))
        finally:
            os._exit(127)
    return pid


def be_engine(first: int, count: int) -> int:
    # a stop that comes amid their start is for all of them; a rank takes signals when it can
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    alive = {start(first + local_rank, local_rank) for local_rank in range(count)}
    code = 0

    def end(signum: "int | None", _frame: "FrameType | None") -> None:
        for pid in alive:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    while alive:
        # until it is reaped it can be signalled, and no other process gets its pid
        pid = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid  # type: ignore[union-attr]
        alive.discard(pid)
        _pid, status = os.waitpid(pid, 0)
        if status and not code:
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            end(None, None)
    return code


def main() -> None:
    if len(sys.argv) > 1 and not set(sys.argv[3:]) & set(os.environ):
        os._exit(be_engine(int(sys.argv[1]), int(sys.argv[2])))
    become_rank()


if __name__ == "__main__":
    main()
