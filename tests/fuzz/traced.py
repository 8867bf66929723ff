"""Runs a command in namespaces of its own (no network but its own loopback, no other processes, its own /etc/passwd)
under strace, and tells what was executed in it and which paths it wrote."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEMORY_KIB = 2 << 20  # of address space: some tens of threads, and their arenas
FILE_BLOCKS = 1 << 19  # of 512 bytes: what it may write into a file
LEFT_S = 1.5  # for what a command leaves behind, until it is ended
OPENS = {"open", "openat", "openat2", "creat"}
NAMES = {  # calls that change what has a name, and how many names, from the right
    **dict.fromkeys(("rename", "renameat", "renameat2", "link", "linkat"), 2),
    **dict.fromkeys(("symlink", "symlinkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "mknod", "mknodat"), 1),
    **dict.fromkeys(("chmod", "fchmodat", "chown", "lchown", "fchownat", "truncate", "utimensat"), 1),
    **dict.fromkeys(("fchmod", "fchown"), 1),
}
CALLS = ",".join([*OPENS, *NAMES, "execve", "execveat", "chdir"])
CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)(?:<((?:[^<>\\]|\\.)*)>)?")
WORD = re.compile(r'(?P<fd>\w+)<(?P<way>(?:[^<>\\]|\\.)*)>|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<null>\bNULL\b)')
# arguments: the folder of the case, where to start, then the command. 9: where the exit status goes.
ENTER = r"""
set -e
base=$1 cwd=$2 become=$3; shift 3
exec 9>"$base/trace/status"
ip link set lo up
mount --bind "$base/passwd" /etc/passwd
while read -r shut needed; do
    mkdir -p "$base/trace/way"
    mount --bind "$needed" "$base/trace/way"
    mount -t tmpfs -o mode=755 fleet "$shut"
    mkdir -p "$needed"
    mount --move "$base/trace/way" "$needed"
done < "$base/shut"
cd "$cwd"
exec strace -ff --seccomp-bpf -qq -y -s 4000 -e signal=none -e trace=CALLS -o "$base/trace/t" $become sh -c '
    ulimit -v MEMORY; ulimit -f BLOCKS
    "$@" 9>&-
    echo $? >&9' sh "$@"
"""
ENTER = ENTER.replace("CALLS", CALLS).replace("MEMORY", str(MEMORY_KIB)).replace("BLOCKS", str(FILE_BLOCKS))


@dataclass
class Seen:
    """code: None where it did not end in time. executed: (program, argv). wrote: path -> the call. left: it left
    processes behind."""

    code: int | None = None
    seconds: float = 0.0
    out: str = ""
    err: str = ""
    executed: list[tuple[str, list[str]]] = field(default_factory=list)
    wrote: dict[str, str] = field(default_factory=dict)
    left: bool = False


def shut() -> list[tuple[str, str]]:
    """Returns folders that only root may enter, each with what another user needs in it: python, and fleet."""
    found: dict[str, str] = {}
    for needed in (os.path.realpath(sys.base_prefix), sys.prefix, str(ROOT)):
        way = next((str(p) for p in reversed(Path(needed).parents) if not p.stat().st_mode & 0o001), None)
        if way is not None and found.setdefault(way, needed) != needed:
            found[way] = os.path.commonpath([found[way], needed])
    return [*found.items()]


def prepare(base: Path, users: Mapping[str, tuple[int, Path]]) -> None:
    """Writes what ENTER reads."""
    lines = [f"{name}:x:{uid}:{uid}:{name}:{home}:/bin/sh\n" for name, (uid, home) in users.items()]
    (base / "passwd").write_text("".join(lines))
    (base / "shut").write_text("".join(f"{way} {needed}\n" for way, needed in shut()))


def run(base: Path, cwd: Path, argv: Sequence[str], env: Mapping[str, str], uid: int, limit: float) -> Seen:
    trace = base / "trace"
    subprocess.run(["rm", "-rf", trace], check=True)
    trace.mkdir(0o700)
    become = f"setpriv --reuid={uid} --regid={uid} --clear-groups" if uid else ""
    line = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "--"]
    line += ["sh", "-c", ENTER, "enter", str(base), str(cwd), become, *argv]
    seen = Seen()
    began = time.monotonic()
    with (trace / "out").open("wb") as out, (trace / "err").open("wb") as err:
        process = subprocess.Popen(line, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        while process.poll() is None and time.monotonic() - began < limit and not _status(trace):
            time.sleep(0.01)
        seen.seconds = time.monotonic() - began
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEFT_S if _status(trace) else 0.1)
        seen.left = process.poll() is None
    finally:
        process.kill()
        process.wait()
    seen.code = int(_status(trace)) if _status(trace) else None
    seen.out = (trace / "out").read_bytes()[:1_000_000].decode(errors="replace")
    seen.err = (trace / "err").read_bytes()[:1_000_000].decode(errors="replace")
    for number, path in enumerate(sorted(trace.glob("t.*"), key=lambda p: int(p.suffix[1:]))):
        _read(path, str(cwd), seen, first=number == 0)
    return seen


def _status(trace: Path) -> str:
    try:
        return (trace / "status").read_text().strip()
    except FileNotFoundError:
        return ""


def _text(quoted: str) -> str:
    data: bytes = ast.literal_eval(f'b"{quoted}"')
    return os.fsdecode(data)


def _read(path: Path, cwd: str, seen: Seen, first: bool) -> None:
    """Reads the calls of one process."""
    pid, fds = path.suffix[1:], dict[str, str]()
    for line in path.read_text(errors="surrogateescape").splitlines():
        if (match := CALL.match(line)) is None:
            continue
        name, words, result, opened = match.groups()
        for fd, way in re.findall(r"(\w+)<(/(?:[^<>\\]|\\.)*)>", words):
            if fd == "AT_FDCWD":
                cwd = _text(way)
            else:
                fds[fd] = _text(way)
        if result.startswith("-"):
            continue
        if name in OPENS:
            if opened:
                fds[result] = _text(opened)
            writes = name == "creat" or re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", words)
            if writes and "O_TMPFILE" not in words:  # which is nobody's: it has no name
                seen.wrote.setdefault(_text(opened or "?").removesuffix("(deleted)"), line)
        elif name == "chdir":
            cwd = os.path.join(cwd, _text(WORD.findall(words)[0][2]))
        elif name.startswith("execve"):
            program, *argv = [_text(word[2]) for word in WORD.findall(words) if not word[0]]
            program = os.path.join(cwd, program)
            if not first:  # of which the first is the shell that starts it
                seen.executed.append((os.path.realpath(program), argv))
        else:
            for written in _named(name, words, cwd, pid, fds):
                seen.wrote.setdefault(written, line)


def _named(name: str, words: str, cwd: str, pid: str, fds: Mapping[str, str]) -> Iterator[str]:
    folder, found = cwd, list[str]()
    for match in WORD.finditer(words):
        if match["fd"]:
            folder = _text(match["way"])
            if match["fd"] != "AT_FDCWD" and (name.startswith("f") and not name.endswith("at") or "NULL" in words):
                found.append(folder)
        elif match["text"] is not None:
            found.append(_real(os.path.join(folder, _text(match["text"])), pid, fds))
            folder = cwd
    yield from found[-NAMES[name] :]


def _real(path: str, pid: str, fds: Mapping[str, str]) -> str:
    """Returns where a name is, links in its folder followed, those of /proc as the process has them."""
    if match := re.match(r"/proc/(\w+)/fd/(\d+)(.*)", path):
        if match[1] not in ("self", pid, "thread-self") or match[2] not in fds:
            return "/proc/?"  # another process's; the tree tells
        path = fds[match[2]] + match[3]
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def shown(argv: Sequence[str]) -> str:
    return shlex.join(word if len(word) < 200 else word[:200] + "..." for word in argv)
