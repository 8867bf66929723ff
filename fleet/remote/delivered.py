"""What code syncs have put on this node, for those who start runs from it: preflight and supervise.

A sync keeps in its state folder (place.py) "state": zlib JSON {"digest": of the manifest, null while files are being
put in place, "entries": [[path, kind, ...]]}. It holds "lock" alone from its first question to its end; who begins a
run holds it together with others like it, so that no sync replaces the code in that time.
"""
import zlib

SYNC_STATE = b".fleet-sync"


def read_state(meta):
    """None where no sync has come as far as putting files in place."""
    try:
        with open(os.path.join(meta, b"state"), "rb") as f:
            state = json.loads(zlib.decompress(f.read()).decode())
        state["digest"], state["entries"]
        return state
    except (OSError, ValueError, KeyError, TypeError, zlib.error):
        return None


def save_state(meta, digest, entries):
    """Atomic. digest None marks a switch under way: what is listed may or may not be there."""
    path = os.path.join(meta, b"state")
    with open(path + b".new", "wb") as f:
        f.write(zlib.compress(json.dumps({"digest": digest, "entries": entries}).encode(), 1))
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + b".new", path)


def find_delivery(path):
    """(destination, state folder) of the sync that path may have come by: the nearest at or above it; or None."""
    folder = path
    while folder != b"/":
        around, name = os.path.split(folder)
        for meta in (os.path.join(folder, SYNC_STATE), os.path.join(around, b"." + name + SYNC_STATE)):
            found = lstat(meta)
            # anybody may have put a folder of that name below /tmp, to be in the way of runs
            if found is not None and stat.S_ISDIR(found.st_mode) \
                    and found.st_uid in (os.geteuid(), os.lstat(folder).st_uid):
                return folder, meta
        folder = around
    return None


def shared_lock(meta, seconds):
    """(descriptor, None), or (None, who) when a sync from `who` holds the lock for so long; OSError."""
    fd = os.open(os.path.join(meta, b"lock"), os.O_RDONLY)
    until = time.monotonic() + seconds
    while not try_lock(fd, fcntl.LOCK_SH):
        if time.monotonic() >= until:
            who = str(holder_of(fd).get("head", "?"))
            os.close(fd)
            return None, who
        time.sleep(0.05)
    return fd, None


def delivery(path, seconds):
    """How the code at path (a folder or file) stands: {"folder", "state", "digest", "half": bool, "busy": who|null}, or
    None when no sync delivered it. digest: null where it cannot be told. Waits `seconds` for a sync to end."""
    path = os.path.realpath(enc(path))
    found = find_delivery(path)
    if found is None:
        return None
    dest, meta = found
    facts = {"folder": dec(dest), "state": dec(meta), "digest": None, "half": False, "busy": None}
    try:
        fd, facts["busy"] = shared_lock(meta, seconds)
    except OSError:
        return facts  # another user's, or a file system without locks
    state = read_state(meta)
    if fd is not None:
        os.close(fd)
    elif path == dest:
        return facts  # also when its first files are on their way
    inside = dec(os.path.relpath(path, dest))
    if state is None or inside != "." and all(entry[0] != inside for entry in state["entries"]):
        return None
    facts.update(digest=state["digest"], half=state["digest"] is None and fd is not None)
    return facts


def begin_from(code, run, seconds):
    """Hold the code as preflight saw it, {"state", "digest"}, while a run begins: a descriptor to close when it has,
    None where nothing can be held. Refused when a sync holds it or has replaced it."""
    meta = enc(code["state"])
    try:
        fd, holder = shared_lock(meta, seconds)
    except OSError:
        return None  # the folder has gone, or its file system knows no locks: no reason not to train
    if fd is None:
        raise Refused("a sync from %s is replacing the code" % holder, "launch again when it has ended")
    if (read_state(meta) or {}).get("digest") != code["digest"]:
        raise Refused("a sync replaced the code while the run began", "launch again")
    try:
        with open(os.path.join(meta, b"begins"), "w") as f:
            f.write(run)
    except OSError:
        pass  # the one whom it keeps waiting will not read for whom
    return fd
