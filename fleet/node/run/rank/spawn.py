"""Starts ranks on a node. An engine runs this program as its training command, or this program is the engine itself. It
imports no module of fleet, and has Python 3.6 syntax.

spawn.py                    an engine started this for one rank: becomes rank.py, with the argv of command.json. The
                            argv is in a file because engines would change it: torchrun's parser removes options and
                            turns $$ into $, DeepSpeed inserts --local_rank where it assumes the script to be.
spawn.py FIRST_RANK COUNT   this is the engine: starts COUNT ranks, and ends the others after the first failure. Exits
                            with the first failure's exit code, 128+n for signal n.
spawn.py FIRST_RANK COUNT VARIABLE   if VARIABLE is set, an engine started this for one rank; if not, it is the engine.
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
    """Returns a rank's argv, with DeepSpeed's --local_rank at the place where its launcher would put it."""
    with open(os.path.join(HERE, "command.json"), encoding="utf-8") as f:
        spec = json.load(f)
    # the kernel must get these bytes, whatever this node's locale is
    argv = [os.fsdecode(item.encode("utf-8", "surrogateescape")) for item in spec["argv"]]
    at = spec.get("local_rank_at")
    if at is not None:
        argv.insert(at, "--local_rank=%s" % os.environ.get("LOCAL_RANK", "0"))
    return argv


def become_rank() -> None:
    """Runs rank.py in this process, as the engine waits for its pid, and a second interpreter would cost time."""
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
            if "FLEET_FIRST_RANK" not in os.environ:  # if it is set, this process starts ranks, and is none
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank))
            become_rank()
        except BaseException as error:
            os.write(2, ("fleet: rank %d did not start: %s\n" % (rank, error)).encode("utf-8", "replace"))
        finally:
            os._exit(127)
    return pid


def be_engine(first: int, count: int) -> int:
    # SIGTERM is blocked, so that a SIGTERM between two starts still reaches all ranks
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    alive = {start(first + local_rank, local_rank) for local_rank in range(count)}
    code = 0

    def end(signum: "int | None", _frame: "FrameType | None") -> None:
        for pid in alive:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    while alive:
        # WNOWAIT: until the child is reaped, no other process can get its pid, and with it the signal of end()
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
