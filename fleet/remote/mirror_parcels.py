"""Files that a code sync's head sends itself, many in one parcel: unpacked into a folder, from where they are moved.

A parcel is zlib data: a JSON line [[path, offset, length], ...], then these bytes, end to end.
"""


class Parcels:
    """folder: where to unpack; made anew. needed: entries of the files that may come."""

    def __init__(self, folder, needed):
        self.folder = folder
        self.left = {entry[0]: entry for entry in needed}
        self.made = set()
        if os.path.lexists(folder):
            remove_tree(folder)
        os.mkdir(folder, 0o700)

    def unpack(self, data):
        line, _, body = zlib.decompress(data).partition(b"\n")
        body, at = memoryview(body), 0
        for path, offset, length in json.loads(line.decode()):
            self.write(self.left[path], offset, body[at:at + length])
            at += length

    def write(self, entry, offset, data):
        path, _kind, mode, size, mtime_ns, _link = entry
        full = os.path.join(self.folder, enc(path))
        around = os.path.dirname(full)
        if around not in self.made:
            os.makedirs(around, 0o700, exist_ok=True)
            self.made.add(around)
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if offset else os.O_TRUNC), 0o600)
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


def remove_tree(folder):
    try:
        os.rmdir(folder)  # empty, most of the time
    except OSError:
        import shutil
        shutil.rmtree(folder, ignore_errors=True)
