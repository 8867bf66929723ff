"""Files that a code sync's head sends itself, many in one parcel: unpacked into a folder, from where they are moved.

A parcel is zlib data: a JSON line [[path, offset, length], ...], then these bytes, end to end.
"""


class Parcels:
    """folder: where to unpack. needed: entries of the files that are to come; those that an interrupted sync has left
    here whole need not. left: path -> entry of what is still to come."""

    def __init__(self, folder, needed):
        self.folder = folder
        self.left = {entry[0]: entry for entry in needed}
        self.made = set()
        before = folder + b".before"
        remove_tree(before)
        if os.path.isdir(folder):
            os.rename(folder, before)
            os.mkdir(folder, 0o700)
            self.take_up(before, needed)
            remove_tree(before)
        else:
            os.mkdir(folder, 0o700)

    def take_up(self, before, needed):
        # what was written before this machine started may not have come to the disk
        booted = time.time() - float((read_file("/proc/uptime").split() or [b"0"])[0])
        for path, _kind, mode, size, mtime_ns, _link in needed:
            full = os.path.join(before, enc(path))
            st = lstat(full)
            if st is not None and stat.S_ISREG(st.st_mode) and st.st_ctime > booted + 1 \
                    and (st.st_size, st.st_mtime_ns) == (size, mtime_ns):
                os.chmod(full, mode)
                os.rename(full, self.place(path))
                del self.left[path]

    def place(self, path):
        full = os.path.join(self.folder, enc(path))
        around = os.path.dirname(full)
        if around not in self.made:
            os.makedirs(around, 0o700, exist_ok=True)
            self.made.add(around)
        return full

    def unpack(self, data):
        line, _, body = zlib.decompress(data).partition(b"\n")
        body, at = memoryview(body), 0
        for path, offset, length in json.loads(line.decode()):
            self.write(self.left[path], offset, body[at:at + length])
            at += length

    def write(self, entry, offset, data):
        path, _kind, mode, size, mtime_ns, _link = entry
        fd = os.open(self.place(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if offset else os.O_TRUNC), 0o600)
        try:
            if offset:
                os.lseek(fd, offset, os.SEEK_SET)
            write_all(fd, data)
            if offset + len(data) == size:
                os.fchmod(fd, mode)
                os.utime(fd, ns=(mtime_ns, mtime_ns))
                del self.left[path]
        finally:
            os.close(fd)


def keep_only(folder, paths):
    """Take away what rsync has left behind of other files; bytes of those that stay."""
    keep, size = {os.path.join(folder, enc(path)) for path in paths}, 0
    for around, _folders, names in os.walk(folder):
        for name in names:
            full = os.path.join(around, name)
            if full in keep:
                size += os.lstat(full).st_size
            else:
                os.unlink(full)
    return size


def remove_tree(folder):
    try:
        os.rmdir(folder)  # empty, most of the time
    except FileNotFoundError:
        pass
    except OSError:
        import shutil
        shutil.rmtree(folder, ignore_errors=True)
