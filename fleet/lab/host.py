"""The program that becomes the lab's switch and hosts: `python3 -I -S host.py < spec.json`, stdlib only.

It forks one child per machine; each enters namespaces of its own and stays. One process forks them all, so 64
hosts share the interpreter's memory. It reports on stdout, one JSON line each: {"name", "pid"} when the
namespaces exist, then, after a byte on the pipe `go_fd` says that the cable is plugged in, {"name", "ready"} or
{"name", "error"}. The end of that pipe without a byte means that `fleet lab up` is gone: so is the host.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MS_REMOUNT, MNT_DETACH, PR_SET_NAME = 32, 2, 15
NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
DISKS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "virtiofs", "9p", "nfs", "nfs4"}
# Made anew in every host, so what the head mounted there is not carried over.
OWN = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp")
# No disks among them: `rm -rf /` or a stray dd in a host harms nothing of this machine.
DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "fuse", "net", "infiniband", "dri", "kfd"}
SSHD_CONFIG = """\
# A stock OpenSSH server (MaxStartups, MaxSessions as compiled in) that takes root's password.
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin yes
PasswordAuthentication yes
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
PidFile /run/sshd.pid
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
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
    """Make `path` absent in the overlay that has `upper` over `disk`: a whiteout, the lower tree is not walked."""
    relative = os.path.relpath(path, disk)
    if not os.path.lexists(path):
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
    """Where this machine's disks are mounted, "/" first; an overlay does not look below a mount by itself."""
    found = ["/"]
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), left.split()[4])
        if right.split()[0] in DISKS and Path(point).is_dir() and point not in found:
            found.append(point)
    inside = tuple(f"{path}/" for path in without)
    return [disk for disk in found if not f"{disk}/".startswith(inside)]


def make_root(spec: dict[str, Any]) -> None:
    """Enter a root of our own: this machine's disks below, all writes in a tmpfs that ends with the namespace."""
    base = spec["mountpoint"]
    hidden = [*OWN, *spec["hidden"]]
    places = disks([*hidden, base])
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("fleet-lab", base, "tmpfs", 0, "mode=0755" + (f",size={spec['disk']}" if spec["disk"] else ""))
    os.chdir(base)
    os.mkdir("root")
    layers = {}
    for number, disk in enumerate(places):
        layers[disk] = (f"upper{number}", f"work{number}")
        for layer in layers[disk]:
            os.mkdir(layer)
        shutil.copystat(disk, layers[disk][0])
    for path in hidden:
        # A folder may be reached through links: what is hidden is where it really lies.
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        for place in {path, real, os.path.realpath(path)}:
            disk = max((d for d in places if f"{place}/".startswith(d.rstrip("/") + "/")), key=len)
            if not os.path.lexists(os.path.join(layers[disk][0], os.path.relpath(place, disk))):
                hide(place, disk, layers[disk][0])
    for disk, (upper, work) in layers.items():
        target = "root" + disk.rstrip("/")
        lower = os.open(disk, os.O_PATH | os.O_DIRECTORY)  # by descriptor: a ':' or ',' in the path is harmless
        try:
            mount("fleet-lab", target, "overlay", 0, f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work}")
        except OSError:
            if disk == "/":
                raise
            mount(disk, target, None, MS_BIND)
            mount(disk, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
        finally:
            os.close(lower)
    os.chdir("root")
    for own in OWN:
        os.makedirs(own[1:], exist_ok=True)
    make_devices("/dev", "dev")
    mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", "sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    call("pivot_root", libc.pivot_root(b".", b"."))
    call("umount", libc.umount2(b".", MNT_DETACH))
    os.chdir("/")
    for folder, mode in (("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run/sshd", 0o755), ("/run/lock", 0o1777)):
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, mode)


def make_devices(old: str, new: str) -> None:
    """A /dev of our own: the character devices that programs and GPUs need, own terminals and shared memory."""
    mount("tmpfs", new, "tmpfs", MS_NOSUID, "mode=0755")
    for name in sorted(os.listdir(old)):
        if name in DEVICES or name.startswith("nvidia"):
            copy_device(f"{old}/{name}", f"{new}/{name}")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"{new}/{name}")
    os.symlink("pts/ptmx", f"{new}/ptmx")
    os.mkdir(f"{new}/pts")
    os.mkdir(f"{new}/shm")
    mount("devpts", f"{new}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    mount("tmpfs", f"{new}/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def copy_device(old: str, new: str) -> None:
    info = os.lstat(old)
    if stat.S_ISDIR(info.st_mode):
        os.mkdir(new)
        for name in os.listdir(old):
            copy_device(f"{old}/{name}", f"{new}/{name}")
    elif stat.S_ISCHR(info.st_mode):
        os.mknod(new, info.st_mode, info.st_rdev)
        os.chmod(new, stat.S_IMODE(info.st_mode))
        os.chown(new, info.st_uid, info.st_gid)


def furnish(spec: dict[str, Any], host: dict[str, Any], keys: dict[str, bytes]) -> None:
    """Give the host its name, accounts, host keys and sshd configuration. Runs inside its own root."""
    name = host["name"].encode()
    call("sethostname", libc.sethostname(name, len(name)))
    replace("/etc/hostname", host["name"] + "\n")
    replace("/etc/hosts", spec["etc_hosts"])
    replace("/etc/resolv.conf", "# no name server in the lab: /etc/hosts names every host\n")
    replace("/etc/machine-id", os.urandom(16).hex() + "\n", 0o444)
    for old in ("lastlog", "wtmp", "btmp", "faillog"):
        Path("/var/log", old).unlink(missing_ok=True)
    Path("/var/log").mkdir(exist_ok=True)
    accounts = Path("/etc/shadow").read_text(encoding="utf-8") if Path("/etc/shadow").exists() else ""
    others = [line for line in accounts.splitlines() if not line.startswith("root:")]
    replace("/etc/shadow", "\n".join([f"root:{spec['password_hash']}:19000:0:99999:7:::", *others, ""]), 0o600)
    ssh = Path("/etc/ssh")
    ssh.mkdir(exist_ok=True)
    for old_file in (*ssh.glob("ssh_host_*"), *ssh.glob("sshd_config*"), *ssh.glob("ssh_known_hosts*")):
        shutil.rmtree(old_file) if old_file.is_dir() else old_file.unlink()
    replace("/etc/ssh/sshd_config", SSHD_CONFIG)
    for file, content in keys.items():
        replace(f"/etc/ssh/{file}", content.decode(), 0o644 if file.endswith(".pub") else 0o600)


def replace(path: str, text: str, mode: int = 0o644) -> None:
    Path(path).unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as out:
        out.write(text)


def plug_in(spec: dict[str, Any], host: dict[str, Any]) -> None:
    """Configure the network card, which `fleet lab up` has by now put into our namespace."""
    lines = ["link set lo up", f"addr add {host['address']}/{spec['prefix']} brd + dev eth0", "link set eth0 up"]
    subprocess.run([spec["ip"], "-batch", "-"], input="\n".join(lines).encode(), check=True, capture_output=True)
    if spec["shape"]:
        subprocess.run(["tc", "qdisc", "replace", "dev", "eth0", *spec["shape"]], check=True, capture_output=True)


def start_sshd(spec: dict[str, Any]) -> None:
    """Start sshd and return when it listens (it writes its pid file after it bound its port)."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    server = subprocess.Popen([spec["sshd"], "-D", "-E", "/var/log/sshd.log"], env=environment, start_new_session=True)
    while not os.path.exists("/run/sshd.pid"):
        if server.poll() is not None:
            log = Path("/var/log/sshd.log")
            said = log.read_text(errors="replace").strip() if log.exists() else ""
            raise OSError(f"sshd ended with {server.returncode}: {said}")
        time.sleep(0.01)
    server.returncode = 0  # init reaps it like any orphan; Popen must not wait for it


def init_forever() -> NoReturn:
    """What is left of pid 1: reap orphans; outlive sshd, so that a test can stop it or swap its keys."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigwait({signal.SIGCHLD})


def be_host(spec: dict[str, Any], host: dict[str, Any]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        if os.read(spec["go_fd"], 1) != b"1":
            os._exit(1)
        os.close(spec["go_fd"])
        keys = {file.name: file.read_bytes() for file in Path(host["keys"]).iterdir()}
        make_root(spec)
        furnish(spec, host, keys)
        plug_in(spec, host)
        start_sshd(spec)
    except subprocess.CalledProcessError as e:
        say(name=host["name"], error=f"{' '.join(e.cmd[:2])}: {e.stderr.decode(errors='replace').strip()}")
        os._exit(1)
    except Exception as e:  # every failure is reported by the host's name, none as a traceback
        say(name=host["name"], error=getattr(e, "strerror", None) or str(e) or type(e).__name__)
        os._exit(1)
    say(name=host["name"], ready=True)
    silence()
    init_forever()


def be_switch(spec: dict[str, Any]) -> NoReturn:
    """The switch is a network namespace with a bridge in it; this process does nothing but hold it open."""
    os.close(spec["go_fd"])
    silence()
    while True:
        signal.pause()


def say(**message: Any) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")  # below PIPE_BUF: lines of many hosts never mix


def silence() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (1, 2):
        os.dup2(null, fd)
    os.close(null)


def spawn(name: str, namespaces: int, body: Any) -> None:
    """Fork into new namespaces. The child that unshares forks once more: pid 1 is the first one after."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()  # a Ctrl-C meant for `fleet lab up` is not meant for the hosts
        call("unshare", libc.unshare(namespaces))
        pid = os.fork()
    except OSError as e:
        say(name=name, error=e.strerror)
        os._exit(1)
    if pid:
        say(name=name, pid=pid)
        os._exit(0)
    try:
        libc.prctl(PR_SET_NAME, b"lab-" + name.encode()[:11], 0, 0, 0)
        body()
    finally:
        os._exit(1)


def main() -> None:
    spec = json.loads(sys.stdin.buffer.read())
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    os.umask(0o022)
    if spec["switch"]:
        spawn("switch", NEWNET, lambda: be_switch(spec))
    for host in spec["hosts"]:
        every = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
        spawn(host["name"], every, lambda host=host: be_host(spec, host))


if __name__ == "__main__":
    main()
