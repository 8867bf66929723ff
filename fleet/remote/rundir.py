"""A run's folder on its node, and the processes that belong to the run; shipped with supervise, follow and stop.

~/.fleet/runs/RUN/ (0700) holds
    spec.json    what was asked for, environment names without their values; "node" says which machine made it
    pid          {"pid", "start", "guardian": {"pid", "start"}, "boot"}: the supervisor, its guardian
    status.json  {"state": "running" | "stopping" | "exited" | "stopped" | "lost", ...}
    node.log, rank<R>.out, rank<R>.err   bytes as they came;  rank<R>.json  how that rank ended
    builds       the folders, a line each, where torch builds extensions, see builds.py
    lease        its time of change is the last renewal;  stop  {"grace", "reason"}, a request to stop
Where nodes share a home folder, the second one to come uses ~/.fleet/runs/RUN@NODENAME/.
Files are replaced by rename and not synced to disk: what a power cut loses, it ended anyway ("boot" tells).
"""

import signal

RUN_MARK = "FLEET_RUN_ID"
RANK_WRAPPER = b"fleet-rank\n"  # rank.py calls itself so
FINAL = ("exited", "stopped", "lost")
# why a node ends a run: "engine" (it has ended), "asked" (by the head), and of its own: "lease" (nothing heard of the
# head for so long), "frozen" (longer than the head waits), "signal" (sent to the supervisor), "supervisor" (killed)
NODE = os.uname()[1].replace("/", "_")
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def runs_root():
    return os.path.join(expand_user("~"), ".fleet", "runs")


def run_names(run):
    """The folder names a run may have on this node. ValueError for what cannot be a run's id."""
    if not run or run[0] in ".-" or not NAME_CHARACTERS.issuperset(run):
        raise ValueError("not a run id: %r" % run)
    return [run, run + "@" + NODE]


def run_folder(run):
    """The folder of a run that was started on this very node, or None."""
    for name in run_names(run):
        folder = os.path.join(runs_root(), name)
        if read_json(os.path.join(folder, "spec.json")).get("node") == NODE:
            return folder
    return None


def tombstone(run):
    """A file that forbids a run which was stopped before it began."""
    return os.path.join(runs_root(), run_names(run)[1] + ".stop")


def read_json(path):
    """An object, {} for a file that is missing, unreadable or holds something else."""
    try:
        value = json.loads(read_file(path).decode("utf-8"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def reserve(path, size=4096):
    """Claim the space that the last replacement of `path` will need, while there is some."""
    with open(path + ".new", "wb") as f:
        f.write(b" " * size)


def write_json(path, value, suffix=".tmp"):
    """Replace `path` in one step; with suffix ".new" in the space that reserve() claimed, even on a full disk."""
    data = json.dumps(value).encode() + b"\n"
    fd = os.open(path + suffix, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data.ljust(os.fstat(fd).st_size))
    finally:
        os.close(fd)
    os.rename(path + suffix, path)


def read_status(folder):
    return read_json(os.path.join(folder, "status.json"))


def final_status(state, reason, left, cause=None, began=None):
    """cause, began: why and when this node began to end the run, see above; what its ranks did then is the answer."""
    now = time.time()
    return {
        "state": state,
        "engine_status": None,
        "signal": None,
        "reason": reason,
        "time": now,
        "left": left,
        "cause": cause,
        "began": began or now,
    }


def write_final(folder, status):
    """Best effort, twice: without the space reserved for it, or without the right to write, it stays unsaid."""
    for suffix in (".new", ".tmp"):
        try:
            write_json(os.path.join(folder, "status.json"), status, suffix)
            break
        except OSError:
            continue


def request_stop(folder, grace, reason):
    """Ask the supervisor to stop; by signal (its own grace, or none) where the disk takes no file."""
    try:
        write_json(os.path.join(folder, "stop"), {"grace": grace, "reason": reason})
    except OSError:
        for who in owners(folder)[:1]:
            os.kill(who["pid"], signal.SIGTERM if grace > 0 else signal.SIGINT)


# -- processes ------------------------------------------------------------------------------------------
def boot_id():
    return read_file("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def identity(pid):
    return {"pid": pid, "start": start_time(pid)}


def owners(folder):
    """Those alive of [supervisor, guardian], as {"pid", "start"}."""
    record = read_json(os.path.join(folder, "pid"))
    if record.get("boot") != boot_id():
        return []
    return [
        who
        for who in (record, record.get("guardian") or {})
        if who.get("pid") and start_time(who["pid"]) == who["start"]
    ]


def descendants(ancestors):
    """{pid: start_time} of all processes below the given pids."""
    children = {}
    for pid in pids():
        stat = read_file("/proc/%d/stat" % pid)
        if stat:
            fields = stat[stat.rindex(b")") + 2 :].split()
            # a zombie whose other threads run on has not ended
            over = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
            children.setdefault(int(fields[1]), []).append((pid, int(fields[19]), over))
    found, todo = {}, list(ancestors)
    while todo:
        for pid, born, over in children.pop(todo.pop(), ()):
            todo.append(pid)
            if not over:
                found[pid] = born
    return found


class Ending:
    """Ends a run's processes: SIGTERM once to each, SIGKILL when the grace is over, until none is left. What they start
    in the grace, a copy of a last checkpoint for instance, has the rest of it in peace.

    A process belongs to the run by its environment, or by descent from `ancestors`, which catches those that
    cleared their environment. Call step() every 50 ms or so until it is true; `left` then holds the pids
    that outlived SIGKILL for `hard` seconds.
    """

    def __init__(self, run, grace, ancestors=(), hard=10.0):
        self.run = run
        self.ancestors = list(ancestors)
        self.hard = hard
        self.kill_at = time.monotonic() + grace
        self.polite = grace > 0
        self.killing = False
        self.told = set()
        self.newest = None  # start time of the youngest that was there at the beginning
        self.quiet = 0
        self.left = []

    def hurry(self, grace):
        self.kill_at = min(self.kill_at, time.monotonic() + grace)

    def members(self):
        found = dict(pids_with_env(RUN_MARK, self.run))
        found.update(descendants(self.ancestors))
        for pid in self.ancestors:
            found.pop(pid, None)
        return found

    def step(self):
        found = self.members()
        self.left = sorted(found)
        if not found:
            # a process in the middle of exec shows no environment for a moment: look twice
            self.quiet += 1
            return self.quiet >= 2
        self.quiet = 0
        if self.newest is None:
            self.newest = max(found.values())
        now = time.monotonic()
        kill = not self.polite or now >= self.kill_at
        first, self.killing = kill and not self.killing, kill
        # youngest first: a rank hears it from here before its engine hears it and passes it on
        for pid in reversed(self.left):
            key = (pid, found[pid])
            if first and read_file("/proc/%d/comm" % pid) == RANK_WRAPPER:
                continue  # a round later than its rank: it puts on record how that ended
            if kill or key not in self.told and found[pid] <= self.newest:
                self.told.add(key)
                send_signal(pid, found[pid], signal.SIGKILL if kill else signal.SIGTERM)
        return now >= self.kill_at + self.hard

    def finish(self, poll=0.05):
        """Step to the end; returns `left`."""
        while not self.step():
            time.sleep(poll)
        return self.left


def send_signal(pid, born, signum):
    if start_time(pid) in (born, None):
        try:
            os.kill(pid, signum)
        except OSError:
            pass


def bury(run, folder, grace, reason, ancestors=(), state="lost", cause="supervisor"):
    """End what a dead supervisor left behind and say so in status.json; returns that status."""
    began = time.time()
    status = final_status(state, reason, Ending(run, grace, ancestors).finish(), cause, began)
    Builds(folder).finish()
    write_final(folder, status)
    return status
