"""Runs one argv and streams its output; ends it, whole tree, when the head goes away.

spec: {"argv": [...] | "line": str, "env": {}, "cwd": str|null, "activate": str|null, "mark": str, "grace": s,
"silence": s|null}. Streams: 0 stdout, 1 stderr. Exits with X {"exit_status": n}: 126/127 as a shell says
for what cannot be started, 128+n for signal n.
"""
import pwd
import select
import signal
import subprocess


def start_process(spec):
    env = dict(os.environ)
    env.update(spec.get("env") or {})
    env["FLEET_EXEC_ID"] = spec["mark"]
    argv = spec.get("argv")
    if argv is None:
        shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
        argv = [shell, "-c", spec["line"]]
    if spec.get("activate"):
        # the line is the user's own shell code; argv goes behind it untouched, as positional parameters
        argv = ["bash", "-c", spec["activate"] + '\nexec "$@"', "bash"] + argv
    cwd = spec.get("cwd")
    return subprocess.Popen(argv, env=env, cwd=expand_user(cwd) if cwd else None, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def pump(process, stop):
    """Copy both pipes to frames until end of file on both, until the command ended, or until `stop`."""
    streams = {process.stdout.fileno(): 0, process.stderr.fileno(): 1}
    while streams:
        ready = select.select(list(streams), [], [], 0.2)[0]
        for fd in ready:
            data = os.read(fd, 65536)
            if data:
                frame(b"O", data, streams[fd])
            else:
                del streams[fd]
        if stop.is_set():
            return
        if not ready and process.poll() is not None:
            # a daemon it left behind holds the pipe: as with ssh -n, the command itself is what counts
            return


def main():
    spec = start()
    start_heartbeat()
    try:
        process = start_process(spec)
    except OSError as error:
        frame(b"O", ("fleet: %s: %s\n" % (error.filename or spec.get("argv", ["?"])[0], error.strerror)).encode(
            "utf-8", "surrogateescape"), 1)
        send_exit(126 if isinstance(error, PermissionError) else 127)
        return
    stop = threading.Event()
    heard = [time.monotonic()]

    def listen():
        for _message in control_lines():
            heard[0] = time.monotonic()
        stop.set()

    def watch():
        silence = spec.get("silence")
        while silence:
            time.sleep(1.0)
            if time.monotonic() - heard[0] > silence:
                stop.set()

    for target in (listen, watch):
        thread = threading.Thread(target=target)
        thread.daemon = True
        thread.start()
    try:
        pump(process, stop)
        if not stop.is_set():
            status = process.wait()
            send_exit(status if status >= 0 else 128 - status)
            return
    except OSError:
        pass  # the head is gone
    end_marked("FLEET_EXEC_ID", spec["mark"], spec.get("grace", 2.0))


signal.signal(signal.SIGPIPE, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
main()
# a reader blocked on stdin must not hold the exit up
os._exit(0)
