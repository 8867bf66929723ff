"""Runs on a host: what is in the folder of sys.argv[1]; which processes, temporary files, shared memory there are."""

import hashlib
import json
import os
import stat
import sys

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/root")


def files(top: str) -> dict[str, list[object]]:
    found = dict[str, list[object]]()
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in folders + names:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            kind = KINDS.get(stat.S_IFMT(info.st_mode), "other")
            what = ""
            if kind == "file":
                with open(path, "rb") as f:
                    what = hashlib.sha256(f.read()).hexdigest()
            elif kind == "link":
                what = os.readlink(path)
            size = info.st_size if kind == "file" else 0
            found[os.path.relpath(path, top)] = [kind, oct(stat.S_IMODE(info.st_mode)), size, what]
    return found


def processes() -> dict[str, str]:
    found = dict[str, str]()
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                with open("/proc/" + pid + "/cmdline") as f:
                    words = f.read().replace("\0", " ").strip()
            except OSError:
                continue
            if words:
                found[pid] = words
    return found


def paths() -> list[str]:
    return [os.path.join(place, name) for place in PLACES for name in sorted(os.listdir(place))]


json.dump({"files": files(sys.argv[1]), "processes": processes(), "paths": paths()}, sys.stdout)
