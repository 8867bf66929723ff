"""Runs one argv and streams its output; ends it, whole tree, after its time or when the head says so or goes away.

spec: {"argv": [...] | "line": str, "env": {}, "cwd": str|null, "activate": str|null, "mark": str, "grace": s,
"silence": s|null, "timeout": s|null}. Streams: 0 stdout, 1 stderr. Exits with X {"exit_status": n}: 126/127 as a shell
says for what cannot be started, 128+n for signal n. Control line {"op": "end"}. What was ended before its time is told
as J {"event": "ended", "why": "timeout" | "asked", "left": [[pid, command]]: what would not end}.
"""

import _signal
import _thread
import os
import select
import time

from fleet.node.base.processes import pids, pids_with_env, read_file, start_time
from fleet.node.base.wire import control_lines, encode, frame, send_exit, send_json, start, start_heartbeat, write_all


def argv_of(spec):
    argv = spec.get("argv")
    if argv is None:
        import pwd

        argv = [pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh", "-c", spec["line"]]
    if spec.get("activate"):
        # the line is the user's own shell code; argv goes behind it untouched, as positional parameters
        argv = ["bash", "-c", spec["activate"] + '\nexec "$@"', "bash"] + argv
    return [encode(word) for word in argv]


def become(spec, argv, out, err):
    """In the child: a session of its own, its pipes, folder and environment, then exec. Raises OSError."""
    os.setsid()
    for signum in (_signal.SIGPIPE, _signal.SIGHUP, _signal.SIGXFSZ):  # python, or we, ignore these
        _signal.signal(signum, _signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    if spec.get("cwd"):
        os.chdir(os.path.expanduser(spec["cwd"]))
    env = dict(os.environb)
    env.update((encode(name), encode(value)) for name, value in (spec.get("env") or {}).items())
    env[b"FLEET_EXEC_ID"] = encode(spec["mark"])
    os.execvpe(argv[0], argv, env)


class Process:
    """The command. `streams`: the read ends of its pipes, and which stream each is; `status`: once it ended."""

    def __init__(self, spec):
        argv = argv_of(spec)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self.streams = {out: 0, err: 1}
        self.status = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 127
            try:
                become(spec, argv, out_end, err_end)
            except OSError as error:
                name = error.filename or argv[0]
                name = name if isinstance(name, bytes) else encode(name)
                write_all(err_end, b"fleet: " + name + b": " + encode(error.strerror) + b"\n")
                status = 126 if isinstance(error, PermissionError) else 127
            finally:
                os._exit(status)
        os.close(out_end)
        os.close(err_end)

    def ended(self):
        """Whether it has; `status` is then what a shell would say, 128+n for signal n."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        return self.status is not None

    def pump(self, stopped):
        """Copy the pipes to frames until both are closed and the command ended, or until something is in `stopped`.

        A daemon it left behind may hold the pipes: as with ssh -n, the command itself is what counts.
        """
        while not stopped and not (self.ended() and not self.streams):
            ready = select.select(list(self.streams), [], [], 0.2 if self.streams else 0.01)[0]
            for fd in ready:
                data = os.read(fd, 65536)
                if data:
                    frame(b"O", data, self.streams[fd])
                else:
                    del self.streams[fd]
            if not ready and self.ended():
                return


class Ending:
    """The end of the command: of what has its mark, and of its session and what these started, whatever is in their
    environment."""

    def __init__(self, root, mark):
        self.mark, self.known, self.sessions = mark, {}, {root}

    def members(self):
        """{pid: start time} of those that live."""
        self.known.update(pids_with_env("FLEET_EXEC_ID", self.mark))
        rows = []
        for pid in pids():
            stat = read_file("/proc/%d/stat" % pid)
            if stat and pid != os.getpid():
                fields = stat[stat.rindex(b")") + 2 :].split()
                rows.append((pid, int(fields[1]), int(fields[3]), int(fields[19])))
        before = -1
        while len(self.known) != before:
            before = len(self.known)
            self.known.update(
                (pid, born) for pid, parent, session, born in rows if parent in self.known or session in self.sessions
            )
        self.known = {pid: born for pid, born in self.known.items() if start_time(pid) == born}
        return self.known

    def signal(self, signum):
        for pid, born in self.members().items():
            try:
                if start_time(pid) == born:
                    os.kill(pid, signum)
            except OSError:
                pass  # gone, or another user's

    def run(self, process, grace, hard=5.0):
        """TERM, up to `grace` seconds, KILL. -> [[pid, command]] of what is left."""
        if grace > 0:
            self.signal(_signal.SIGTERM)
        for seconds, signum in ((grace, 0), (hard, _signal.SIGKILL)):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if signum:
                    self.signal(signum)
                process.ended()
                if not self.members():
                    return []
                time.sleep(0.05)
        return [[pid, command_of(pid)] for pid in sorted(self.members())]


def command_of(pid):
    line = read_file("/proc/%d/cmdline" % pid, 300).replace(b"\0", b" ").strip()
    return (line or read_file("/proc/%d/comm" % pid).strip()).decode("utf-8", "replace")


def main():
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)
    spec = start()
    process = Process(spec)  # forks, so before any thread
    start_heartbeat()
    stopped = []
    heard = [time.monotonic()]

    def listen():
        for message in control_lines():
            heard[0] = time.monotonic()
            if message.get("op") == "end":
                stopped.append("asked")
        stopped.append("the head is gone")

    def watch():
        while not stopped:
            time.sleep(1.0)
            if time.monotonic() - heard[0] > spec["silence"]:
                stopped.append("the head is silent")

    def limit():
        time.sleep(spec["timeout"])
        stopped.append("timeout")

    _thread.start_new_thread(listen, ())
    if spec.get("timeout") is not None:
        _thread.start_new_thread(limit, ())
    if spec.get("silence"):
        _thread.start_new_thread(watch, ())
    try:
        process.pump(stopped)
        if not stopped:
            send_exit(process.status)
            return
    except OSError:
        pass  # the head is gone
    left = Ending(process.pid, spec["mark"]).run(process, spec.get("grace", 2.0))
    try:
        if stopped and stopped[0] in ("timeout", "asked"):
            send_json({"event": "ended", "why": stopped[0], "left": left[:20]})
            send_exit(1)
    except OSError:
        pass  # the head is gone meanwhile
