"""Makes the root of a virtual host: this machine's disks through an overlay, all else its own. It needs the standard
library only."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 1, 32, 4096, 16384, 1 << 18, 2
DISKS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "virtiofs", "9p", "nfs", "nfs4"}
# new in every host, so nothing that the head mounted there is visible
OWN = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp")
# Makes mounts and devices in a root, the current folder. $1: the folder that all hosts have as /share. The devices have
# no disks, so that `rm -rf /` or dd in a host does not harm this machine.
OWN_MOUNTS = """
mkdir -p share
mount --bind "$1" share
mount -t tmpfs -o nosuid,mode=0755 tmpfs dev
for each in null zero full random urandom tty fuse net infiniband dri kfd $(cd /dev && ls -d nvidia* 2>/dev/null); do
    if [ -e "/dev/$each" ]; then cp -a "/dev/$each" dev/; fi
done
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
ln -s pts/ptmx dev/ptmx
mkdir dev/pts dev/shm
mount -t devpts -o nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs dev/shm
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t sysfs -o nosuid,nodev,noexec sysfs sys
mount -t tmpfs -o nosuid,nodev,mode=0755 tmpfs run
mkdir -p tmp var/tmp run/sshd run/lock
chmod 1777 tmp var/tmp run/lock
"""

libc = ctypes.CDLL(None, use_errno=True)


def call(what: str, result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    options = data.encode() if data else None
    fstype = kind.encode() if kind else None
    call(f"mount {target}", libc.mount(source.encode(), os.fsencode(target), fstype, flags, options))


def hide(path: str, disk: str, upper: str) -> None:
    """Hides `path` in the overlay that has `upper` over `disk`, by a whiteout. Also hides a path that does not exist
    yet, as the head may make it later."""
    relative = os.path.relpath(path, disk)
    if not os.path.isdir(os.path.dirname(path)):
        return
    parent, made = Path(disk), Path(upper)
    for part in Path(relative).parts[:-1]:
        parent, made = parent / part, made / part
        if made.is_char_device():  # hidden already, with all below it
            return
        if not made.exists():
            made.mkdir()
            shutil.copystat(parent, made)
            info = parent.stat()
            os.chown(made, info.st_uid, info.st_gid)
    os.mknod(made / Path(path).name, stat.S_IFCHR, 0)


def disks(without: list[str]) -> list[str]:
    """Returns the mount points of this machine's disks, "/" first. An overlay does not include mounts below it."""
    found = ["/"]
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), left.split()[4])
        if right.split()[0] in DISKS and Path(point).is_dir() and point not in found:
            found.append(point)
    inside = tuple(f"{path}/" for path in without)
    return [disk for disk in found if not f"{disk}/".startswith(inside)]


def make_root(spec: dict[str, Any]) -> None:
    """Enters a new root over this machine's disks. All writes are in a tmpfs that ends with the namespace."""
    base = spec["mountpoint"]
    hidden = [*OWN, *spec["hidden"]]
    layers = {disk: f"layer{number}" for number, disk in enumerate(disks([*hidden, base]))}
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("fleet-lab", base, "tmpfs", 0, "mode=0755" + (f",size={spec['disk']}" if spec["disk"] else ""))
    os.chdir(base)
    os.mkdir("root")
    for disk, layer in layers.items():
        make_layer(layer)
        shutil.copystat(disk, f"{layer}/upper")
    for path in hidden:
        # a folder may be reached through links, so its real path is hidden, too
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        for place in {path, real, os.path.realpath(path)}:
            disk = max((d for d in layers if f"{place}/".startswith(d.rstrip("/") + "/")), key=len)
            upper = f"{layers[disk]}/upper"
            if not os.path.lexists(os.path.join(upper, os.path.relpath(place, disk))):
                hide(place, disk, upper)
    for disk, layer in layers.items():
        target = "root" + disk.rstrip("/")
        try:
            overlay(disk, target, layer)
        except OSError:
            if disk == "/":
                raise
            mount(disk, target, None, MS_BIND)
            mount(disk, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    os.chdir("root")
    for own in OWN:
        os.makedirs(own[1:], exist_ok=True)
    for number, path in enumerate(spec["shown"]):
        if path.startswith(tuple(f"{own}/" for own in OWN)):  # other paths are visible anyway
            os.makedirs(path[1:], exist_ok=True)
            make_layer(f"../shown{number}")
            overlay(path, path[1:], f"../shown{number}")
    subprocess.run(["sh", "-ec", OWN_MOUNTS, "sh", spec["shared"]], check=True, capture_output=True)
    call("pivot_root", libc.pivot_root(b".", b"."))
    call("umount", libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


def make_layer(layer: str) -> None:
    for part in ("upper", "work"):
        os.makedirs(f"{layer}/{part}")


def overlay(path: str, target: str, layer: str) -> None:
    """Mounts this machine's folder `path` at `target`. Writes are in the layer."""
    lower = os.open(path, os.O_PATH | os.O_DIRECTORY)  # by descriptor: a ':' or ',' in the path is harmless
    try:
        data = f"lowerdir=/proc/self/fd/{lower},upperdir={layer}/upper,workdir={layer}/work"
        mount("fleet-lab", target, "overlay", 0, data)
    finally:
        os.close(lower)
