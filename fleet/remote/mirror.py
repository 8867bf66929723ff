"""The node's half of a code sync: says what it lacks, lets rsync stage it, verifies, then switches it in.

Conversation (J frames out, control lines in):
    spec {"dest", "sync", "host", "head", "wait": s, "patience": s}
    -> {"event": "hello", "dest", "known": manifest digest | null, "rsync": path | null}
       or {"event": "shared", "with": host}: another host of this very sync holds the lock of the same folder
    <- {"op": "manifest", "digest", "size": n} and n bytes (zlib JSON), or size 0 where "known" is that digest
    -> {"event": "need", "files": [[path, size]], "stage": dir, "basis": dir}
    <- {"op": "switch", "digests": {path: sha256}}
    -> {"event": "waiting", "run": id} when files are to be put in place and a run is beginning from DEST
    -> {"event": "done", "sent", "deleted", "kept": [...], "entries", "changed"}
Any refusal is {"event": "failed", "message", "hint"}. A head that says nothing (not even ping) for `patience`
seconds while it is asked something is gone: the program ends, and its lock with it.

A manifest is a list of [path, kind, mode, size, mtime_ns, link]; kind "f", "d" or "l". Paths travel as
UTF-8 with surrogateescape. What earlier syncs delivered is remembered in a folder beside DEST (inside it,
where DEST is a mount point or the parent is not ours); only that is ever deleted, and only if unmodified.
"""
# parts: place delivered
import shutil


class Head:
    """The head's side of the conversation, and the end of this program when that side is silent for too long."""

    def __init__(self, patience):
        self.patience = patience
        self.heard = None
        self.lines = control_lines()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            time.sleep(min(1.0, self.patience / 4))
            heard = self.heard
            if heard is not None and time.monotonic() - heard > self.patience:
                os._exit(1)

    def ask(self, question, op):
        """Its answer, the control line called op; None when it is gone."""
        self.heard = time.monotonic()
        send_json(question)
        for message in self.lines:
            self.heard = time.monotonic()
            if message.get("op") == op:
                self.heard = None
                return message
        return None

    def read(self, size):
        """The bytes that follow a control line."""
        parts = []
        while size:
            self.heard = time.monotonic()
            part = sys.stdin.buffer.read1(min(size, 65536))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        self.heard = None
        return b"".join(parts)


def make_dest(dest):
    try:
        os.makedirs(dest, exist_ok=True)
    except FileExistsError:
        what = "link that leads nowhere" if os.path.islink(dest) else "file"
        raise Refused("%s is a %s" % (dec(dest), what), "name a folder with --to") from None
    except OSError as error:
        raise Refused("cannot make %s: %s" % (dec(dest), error.strerror), "choose another folder with --to") from None
    if not os.access(dest, os.W_OK | os.X_OK):
        raise Refused("%s is not writable" % dec(dest), "choose another folder with --to, or mend its mode")


def matches(entry, st):
    """Whether what is on disk is this entry, judged as rsync does: kind, size and mtime."""
    _path, kind, _mode, size, mtime_ns, _link = entry
    if kind == "f":
        return stat.S_ISREG(st.st_mode) and st.st_size == size and st.st_mtime_ns == mtime_ns
    if kind == "d":
        return stat.S_ISDIR(st.st_mode)
    return stat.S_ISLNK(st.st_mode)


def check_place(dest, entry, known):
    """Refuse what would go through a symlink on the node, or replace something of the node's own."""
    path, kind = entry[0], entry[1]
    check_inside(path)
    st = lstat(os.path.join(dest, enc(path)))
    if st is None or stat.S_ISDIR(st.st_mode) == (kind == "d"):
        return
    if path in known and matches(known[path], st):
        return  # delivered by us, a folder then and a file now, or the other way round
    what = "folder" if stat.S_ISDIR(st.st_mode) else "link" if stat.S_ISLNK(st.st_mode) else "file"
    raise Refused("%s is a %s on the node, and not so in the source" % (path, what), "move it away there first")


def verify(stage, needed, digests):
    for entry in needed:
        staged = os.path.join(stage, enc(entry[0]))
        if lstat(staged) is None or file_digest(staged) != digests.get(entry[0]):
            raise Refused("%s did not arrive as it was sent (changed while it was read?)" % entry[0],
                          "run the sync again; nothing was switched in")


def switch(dest, stage, entries, needed):
    """Put folders, files and links in place. Every single step is atomic, their sum is guarded by the lock."""
    needed = {e[0] for e in needed}
    folders = [(os.path.join(dest, enc(e[0])), e[2]) for e in entries if e[1] == "d"]
    for full, _mode in folders:
        if not os.path.isdir(full):
            os.mkdir(full, 0o700)
    for path, kind, mode, _size, _mtime, link in entries:
        full = os.path.join(dest, enc(path))
        if kind == "f":
            if path in needed:
                os.chmod(os.path.join(stage, enc(path)), mode)
                os.rename(os.path.join(stage, enc(path)), full)
            elif stat.S_IMODE(os.lstat(full).st_mode) != mode:
                os.chmod(full, mode)
        elif kind == "l" and not (os.path.islink(full) and os.readlink(full) == enc(link)):
            # beside the stage: what an interrupted switch left here is in nobody's way
            new = os.path.join(os.path.dirname(stage), b"link.new")
            if lstat(new) is not None:
                os.unlink(new)
            os.symlink(enc(link), new)
            os.rename(new, full)
    for full, mode in reversed(folders):
        if stat.S_IMODE(os.lstat(full).st_mode) != mode:
            os.chmod(full, mode)


def delete_stale(dest, old, entries):
    """Remove what was delivered and is no more in the source, unless the node changed it. -> deleted, kept"""
    folder = {e[0]: e[1] == "d" for e in entries}
    deleted, kept = 0, []
    for path, entry in sorted(old.items(), reverse=True):
        if folder.get(path) == (entry[1] == "d"):
            continue
        full = os.path.join(dest, enc(path))
        st = lstat(full)
        if st is None or os.path.realpath(os.path.dirname(full)) != os.path.dirname(full):
            continue  # gone already, or reached through a link that the node put there
        if entry[1] == "d" and stat.S_ISDIR(st.st_mode):
            try:
                os.rmdir(full)
                deleted += 1
            except OSError:
                kept.append(path)  # the node put something of its own there
        elif entry[1] != "d" and matches(entry, st):
            os.unlink(full)
            deleted += 1
        else:
            kept.append(path)
    return deleted, kept


def read_manifest(head, hello, known):
    """(digest, entries); (None, None) when the head is gone."""
    message = head.ask(hello, "manifest")
    if message is None:
        return None, None
    if not message["size"]:
        return message["digest"], known
    data = head.read(message["size"])
    if hashlib.sha256(data).hexdigest() != message["sha256"]:
        raise Refused("the list of files arrived damaged", "run the sync again")
    return message["digest"], json.loads(zlib.decompress(data).decode())


def compare(dest, entries, known):
    """(entries of the files that the head is to send, how many entries are not as in the source)."""
    needed, changed = [], 0
    for entry in entries:
        check_place(dest, entry, known)
        full = os.path.join(dest, enc(entry[0]))
        st = lstat(full)
        same = st is not None and matches(entry, st)
        if not same and entry[1] == "f":
            needed.append(entry)
        if same and entry[1] == "l":
            same = os.readlink(full) == enc(entry[5])
        elif same:
            same = (st.st_mode ^ entry[2]) & 0o777 == 0
        changed += not same
    size, space = sum(e[3] for e in needed), os.statvfs(dest)
    free = space.f_bavail * space.f_frsize
    if size > free:
        raise Refused("%d bytes are to be written to %s, %d are free" % (size, dec(dest), free),
                      "free some space there, or exclude large files with .fleetignore")
    return needed, changed


def mirror(spec):
    path = expand_user(spec["dest"])
    if path.startswith("~"):
        raise Refused("there is no user %s" % path.split("/")[0], "'~/...' is the home of the user who logs in")
    dest = os.path.realpath(enc(path))
    if dest == b"/":
        raise Refused("'/' cannot be a destination", "name a folder with --to")
    make_dest(dest)
    meta = state_folder(dest, SYNC_STATE)
    fd, holder = take_lock(meta, spec)
    if fd is None:
        return {"event": "shared", "with": holder}
    head = Head(spec["patience"])
    stage = os.path.join(meta, b"stage")
    state = read_state(meta) or {"digest": None, "entries": []}
    known = {e[0]: e for e in state["entries"]}
    digest, entries = read_manifest(
        head, {"event": "hello", "dest": dec(dest), "known": state["digest"], "rsync": shutil.which("rsync")},
        state["entries"])
    if entries is None:
        return None
    needed, changed = compare(dest, entries, known)
    os.makedirs(stage, 0o700, exist_ok=True)
    message = head.ask({"event": "need", "files": [[e[0], e[3]] for e in needed], "stage": dec(stage),
                        "basis": dec(dest)}, "switch")
    if message is None:
        return None
    verify(stage, needed, message["digests"])
    deleted, kept = 0, []
    if changed or digest != state["digest"]:
        wait_for_runs(meta, lambda run: send_json({"event": "waiting", "run": run}))
        union = dict(known)
        union.update((e[0], e) for e in entries)
        save_state(meta, None, list(union.values()))
        deleted, kept = delete_stale(dest, known, entries)
        switch(dest, stage, entries, needed)
        save_state(meta, digest, entries + [known[path] for path in kept if known[path][1] == "d"])
    shutil.rmtree(stage, ignore_errors=True)
    return {"event": "done", "sent": len(needed), "bytes": sum(e[3] for e in needed), "deleted": deleted,
            "kept": kept[:100], "entries": len(entries), "changed": changed}


def main():
    spec = start()
    start_heartbeat()
    try:
        answer = mirror(spec)
    except Refused as refused:
        answer = {"event": "failed", "message": refused.args[0], "hint": refused.args[1]}
    except OSError as error:
        name = error.filename
        name = dec(name) if isinstance(name, bytes) else name
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        answer = {"event": "failed", "message": "%s: %s" % (name or spec["dest"], error.strerror),
                  "hint": "free some space there" if full else None}
    if answer is not None:
        send_json(answer)
        send_exit(1 if answer["event"] == "failed" else 0)


main()
os._exit(0)
