"""The user's own folders on the head: runs/, builds/, ~/.fleet. They are entered through no link that another user
made. They belong to the user (or root), and are not open to all, as a destination on a node."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fleet.errors import UsageError
from fleet.node.base.beneath import LINKS, check_folder, inside_of, is_ours, reach
from fleet.node.base.errors import Refused
from fleet.node.base.files import open_regular, replace_file
from fleet.node.base.locks import alone
from fleet.node.base.private import private as private
from fleet.node.base.state_folder import own_home
from fleet.protocol.state import OF_THE_HEAD

MOST_BYTES = 64 << 20  # of a document that fleet writes; it is read whole
KEY, KEY_BYTES = "key", 32  # in ~/.fleet, for seal()


@contextlib.contextmanager
def _refusing(hint: str) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise UsageError(error.message, hint=hint) from None


def around(path: Path) -> int | None:
    """Returns who is trusted with a folder of the head's, other than the user. Where root works in a user's folder
    (sudo, a container), it is that user, whose code and inventory are used, too."""
    return None if os.geteuid() else path.absolute().parent.stat().st_uid


def own_folder(path: Path, option: str, *, make: bool = False) -> bool:
    """Returns whether it is there, as it must be; made (0700) where need be, with a .gitignore: neither git nor a sync
    takes it along. option: names another one. UsageError where it is another user's, or others could write there;
    OSError."""
    new = not os.path.lexists(path)
    if new and not make:
        return False
    given_folder(path, option, make=make, mode=0o700)
    if new:
        (path / ".gitignore").write_text(OF_THE_HEAD)
    return True


def given_folder(path: Path, option: str, *, make: bool = True, mode: int = 0o777) -> None:
    """Looks at a folder that is written to, made where need be. UsageError and `option` as in own_folder(); OSError."""
    with _refusing(f"take it away, mend its owner or mode, or name another folder with {option}"):
        fd = reach(os.fsencode(path.absolute()), make, mode)
        try:
            check_folder(inside_of(fd, b"."), os.fstat(fd), around(path))
        finally:
            os.close(fd)


def foreign(path: Path, info: os.stat_result | None = None) -> str | None:
    """Returns why what lies in a folder of the user's is not read, as text: it is a link, or another user put it
    there."""
    info = info or path.lstat()
    if stat.S_ISLNK(info.st_mode):
        return "is a link"
    return None if is_mine(info.st_uid, path, path.parent) else f"belongs to user id {info.st_uid}"


def is_mine(uid: int, path: Path, folder: Path) -> bool:
    """Returns whether that user id of what lies at `path` is the user's, or root's; or is trusted around `folder`."""
    return uid in (0, around(folder)) or is_ours(os.fsencode(path.parent), uid)


def own_umask() -> int:
    """Returns the umask, which no call reads without setting it: 022 where the kernel does not show it."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/self/status").read_text().split("Umask:")[1].split()[0], 8)
    return 0o022


def open_own(path: Path) -> BinaryIO:
    """Opens a file of the user's to read. OSError where it is a link, no regular file, or another user's."""
    file = open_regular(str(path), os.O_NOFOLLOW)
    if (why := foreign(path, os.fstat(file.fileno()))) is not None:
        file.close()
        raise OSError(errno.EPERM, f"it {why}", str(path))
    return file


def read_own(path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns what a file of the user's holds. OSError as open_own(), or where it is larger than `most` bytes."""
    with open_own(path) as file:
        return bounded(file, most)


def read_given(path: Path) -> bytes:
    """Returns what a file holds that the user names, wherever its name leads. OSError where it is no regular file, or
    larger than 64 MiB."""
    with open_regular(str(path)) as file:
        return bounded(file)


def write_given(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files, by their paths below it, to a folder that the user names with --to: no link is followed in their
    place. UsageError."""
    try:
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            replace_file(os.fsencode(folder / name), data)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}", hint="--to DIR writes elsewhere") from None


def bounded(file: BinaryIO, most: int = MOST_BYTES) -> bytes:
    """Returns what a file holds. OSError where that is more than `most` bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB")
    return data


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """Returns what a JSON file of the user's holds. OSError as read_own(); ValueError where it is no JSON, or nested
    too deep."""
    try:
        return json.loads(read_own(path, most))
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def own_file(path: Path, hint: str) -> Path:
    """Returns where it is, links followed. UsageError where what is to be replaced is another user's, or a link of
    another user's leads there; OSError."""
    links = 0
    while os.path.lexists(path):
        info = path.lstat()
        if not is_mine(info.st_uid, path, path):
            what = "is a link of" if stat.S_ISLNK(info.st_mode) else "belongs to"
            raise UsageError(f"{path} {what} user id {info.st_uid}", hint=hint)
        if not stat.S_ISLNK(info.st_mode) or links == LINKS:
            break
        links, path = links + 1, path.parent / os.readlink(path)
    return path


def home(place: Path, *names: str) -> Path:
    """~/.fleet, `place` being ~, or a folder below it: made (0700) where need be. UsageError where it is another
    user's; OSError."""
    with _refusing(f"take it away, or run this as the user that it belongs to: ls -ld {place}/.fleet"):
        return Path(own_home(*names, home=str(place)))


def seal(*values: object) -> str | None:
    """Returns what only this user's fleet can make of JSON values: their HMAC, by a random key in ~/.fleet, which is
    made where need be. None without a home to keep it in, or where the values are nested too deep."""
    import hmac  # it takes 4 ms, and most commands seal nothing

    try:
        text = json.dumps(json.loads(json.dumps(values, default=str)), sort_keys=True)
        with open(home(Path.home()) / KEY, "a+b", opener=private) as file, alone(file.fileno()):
            file.seek(0)
            key = file.read(KEY_BYTES)
            if len(key) < KEY_BYTES:
                file.truncate(0)
                key = os.urandom(KEY_BYTES)
                file.write(key)
            if foreign(Path(file.name), os.fstat(file.fileno())) is not None:
                return None
    except (OSError, UsageError, RuntimeError):  # no home that is ours, or none at all; RecursionError
        return None
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def is_seal(given: object, *values: object) -> bool:
    """Returns whether that is the seal() of these values."""
    return given is not None and given == seal(*values)
