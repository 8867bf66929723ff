"""Putting a code sync's files in place, and taking away what the source has no more."""


def matches(entry, st):
    """Whether what is on disk is this entry, judged as rsync does: kind, size and mtime."""
    _path, kind, _mode, size, mtime_ns, _link = entry
    if kind == "f":
        return stat.S_ISREG(st.st_mode) and st.st_size == size and st.st_mtime_ns == mtime_ns
    if kind == "d":
        return stat.S_ISDIR(st.st_mode)
    return stat.S_ISLNK(st.st_mode)


def check_place(entry, st, known):
    """Refuse what would go through a symlink on the node, or replace something of the node's own. st: what is there."""
    path, kind = entry[0], entry[1]
    check_inside(path)
    if st is None or stat.S_ISDIR(st.st_mode) == (kind == "d"):
        return
    if path in known and matches(known[path], st):
        return  # delivered by us, a folder then and a file now, or the other way round
    what = "folder" if stat.S_ISDIR(st.st_mode) else "link" if stat.S_ISLNK(st.st_mode) else "file"
    raise Refused("%s is a %s on the node, and not so in the source" % (path, what), "move it away there first")


def compare(dest, entries, known):
    """(entries of files that the head is to send, all entries that are not there as in the source)."""
    needed, changed = [], []
    regular, base, look = stat.S_IFREG, dest + b"/", os.lstat
    for entry in entries:
        path, kind, mode, size, mtime_ns, link = entry
        full = base + enc(path)
        try:
            st = look(full)
        except OSError:
            st = None
        else:
            # of tens of thousands of files nearly all are as they were
            if kind == "f" and st.st_mtime_ns == mtime_ns and st.st_size == size and st.st_mode == regular | mode:
                continue
            if kind == "d" and stat.S_ISDIR(st.st_mode) and not (st.st_mode ^ mode) & 0o777:
                continue
            if kind == "l" and stat.S_ISLNK(st.st_mode) and os.readlink(full) == enc(link):
                continue
        check_place(entry, st, known)
        changed.append(entry)
        if kind == "f" and (st is None or not matches(entry, st)):
            needed.append(entry)
    return needed, changed


def delete_stale(dest, old, entries):
    """Remove what was delivered and is no more in the source, unless the node changed it. -> deleted, kept"""
    folder = {e[0]: e[1] == "d" for e in entries}
    deleted, kept = 0, []
    for path in sorted((path for path, entry in old.items() if folder.get(path) != (entry[1] == "d")), reverse=True):
        entry, full = old[path], os.path.join(dest, enc(path))
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


class Switch:
    """Every single step is atomic, their sum is guarded by the lock. parcels, stage: where the needed files lie."""

    def __init__(self, dest, parcels, stage, staged):
        self.dest, self.parcels, self.stage, self.staged = dest, parcels, stage, staged
        self.moved = set()

    def run(self, changed, needed):
        needed = {entry[0] for entry in needed}
        folders = []
        for path, kind, mode, _size, _mtime, link in changed:
            full = os.path.join(self.dest, enc(path))
            if kind == "d":
                self.make(path, full)
                folders.append((full, mode))
            elif kind == "l":
                self.link(enc(link), full)
            elif path in needed:
                self.place(path, full, mode)
            else:
                os.chmod(full, mode)
        for full, mode in reversed(folders):
            if stat.S_IMODE(os.lstat(full).st_mode) != mode:
                os.chmod(full, mode)

    def make(self, path, full):
        """A folder that is new comes with all its new files in one step."""
        if not os.path.isdir(full):
            try:
                os.rename(os.path.join(self.parcels, enc(path)), full)
            except FileNotFoundError:
                os.mkdir(full, 0o700)
                return
        elif path.rpartition("/")[0] not in self.moved:
            return
        self.moved.add(path)

    def place(self, path, full, mode):
        if path in self.staged:
            staged = os.path.join(self.stage, enc(path))
            os.chmod(staged, mode)
            os.rename(staged, full)
        elif path.rpartition("/")[0] not in self.moved:
            os.rename(os.path.join(self.parcels, enc(path)), full)

    def link(self, target, full):
        # beside the stage: what an interrupted switch left here is in nobody's way
        new = os.path.join(os.path.dirname(self.stage), b"link.new")
        if lstat(new) is not None:
            os.unlink(new)
        os.symlink(target, new)
        os.rename(new, full)
