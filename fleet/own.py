"""Checks, reads and writes the user's folders on the head: runs/, builds/, ~/.fleet. They belong to the user or root,
and not all users may write there. No link of another user is followed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fleet.best_effort import best_effort
from fleet.errors import UsageError
from fleet.node.base.beneath import LINKS, check_folder, inside_of, is_ours, reach
from fleet.node.base.errors import Refused, closing, on_os_error
from fleet.node.base.files import open_regular, replace_file
from fleet.node.base.files import private as private
from fleet.node.base.locks import exclusive_lock
from fleet.node.base.state_folder import own_home
from fleet.protocol.state import OF_THE_HEAD

MOST_BYTES = 64 << 20  # a document that fleet writes has at most so many, because it is read whole
KEY, KEY_BYTES = "key", 32  # the file in ~/.fleet that holds the key of seal(), and the key's size


@contextlib.contextmanager
def _refusing(hint: str) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise UsageError(error.message, hint=hint) from None


def around(path: Path) -> int | None:
    """Returns the id of a user who is trusted in addition, or None. If root works in a user's folder (sudo, a
    container), that user is trusted, because root uses the user's code and inventory anyway."""
    return None if os.geteuid() else path.absolute().parent.stat().st_uid


def own_folder(path: Path, option: str, *, make: bool = False) -> bool:
    """Returns True if the folder exists. make: creates it with mode 0700 and a .gitignore, so that git and syncs ignore
    it. option: the option that names another folder, for the hint. Raises UsageError if the folder is another user's,
    or if others can write there. Raises OSError if it cannot be made or read."""
    new = not os.path.lexists(path)
    if new and not make:
        return False
    given_folder(path, option, make=make, mode=0o700)
    if new:
        (path / ".gitignore").write_text(OF_THE_HEAD)
    return True


def given_folder(path: Path, option: str, *, make: bool = True, mode: int = 0o777) -> None:
    """Checks a folder that fleet writes to. make: creates it if it is missing. For option and errors, see
    own_folder()."""
    refusing = _refusing(f"remove it, mend its owner or mode, or name another folder with {option}")
    with refusing, closing(reach(os.fsencode(path.absolute()), make, mode)) as fd:
        check_folder(inside_of(fd, b"."), os.fstat(fd), around(path))


def foreign(path: Path, info: os.stat_result | None = None) -> str | None:
    """Returns why a file in a folder of the user is not read: it is a link, or another user's. Returns None if it may
    be read."""
    info = info or path.lstat()
    if stat.S_ISLNK(info.st_mode):
        return "is a link"
    return None if is_mine(info.st_uid, path, path.parent) else f"belongs to user id {info.st_uid}"


def is_mine(uid: int, path: Path, folder: Path) -> bool:
    """Returns True if the owner `uid` of `path` is the user, root, or the user trusted around `folder`."""
    return uid in (0, around(folder)) or is_ours(os.fsencode(path.parent), uid)


def own_umask() -> int:
    """Returns the umask. Reads it from /proc, because os.umask() would change it. Returns 022 if the kernel does not
    show it."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/self/status").read_text().split("Umask:")[1].split()[0], 8)
    return 0o022


def open_own(path: Path) -> BinaryIO:
    """Opens a file of the user for reading. Raises OSError for a link, another kind of file, or another user's file."""
    file = open_regular(str(path), os.O_NOFOLLOW)
    if (why := foreign(path, os.fstat(file.fileno()))) is not None:
        file.close()
        raise OSError(errno.EPERM, f"it {why}", str(path))
    return file


def read_own(path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns the content of a file of the user. Raises OSError as open_own() does, or if it has more than `most`
    bytes."""
    with open_own(path) as file:
        return bounded(file, most)


def lines_of(path: Path) -> list[str]:
    """Returns the lines of a file that add_line() wrote, or [] if it cannot be read."""
    with contextlib.suppress(OSError):
        return os.fsdecode(read_own(path)).split("\n")[:-1]
    return []


def add_line(place: Path, name: str, line: str, most: int) -> None:
    """Adds a line to a file in the folder .fleet below `place`. The file keeps its last `most` lines. Two processes may
    add lines at once. Raises UsageError if the folder is another user's, and OSError."""
    path = home(place) / name
    with open(f"{path}.lock", "ab", opener=private) as lock, exclusive_lock(lock.fileno()):
        text = "".join(f"{each}\n" for each in [*lines_of(path), line][-most:])
        replace_file(os.fsencode(path), os.fsencode(text), 0o600)


def read_given(path: Path) -> bytes:
    """Returns the content of a file that the user names; links are followed. Raises OSError if it is no regular file,
    or larger than 64 MiB."""
    with open_regular(str(path)) as file:
        return bounded(file)


def write_given(folder: Path, files: Mapping[str, bytes], option: str = "--to DIR") -> None:
    """Writes files, given by their relative paths, to a folder that the user names with an option. A link in a file's
    place is replaced, not followed. Raises UsageError."""
    with on_os_error(UsageError, str(folder), hint=f"{option} writes elsewhere"):
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            replace_file(os.fsencode(folder / name), data)


def bounded(file: BinaryIO, most: int = MOST_BYTES) -> bytes:
    """Returns the content of a file. Raises OSError if it has more than `most` bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB")
    return data


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """Returns the value in a JSON file of the user. Raises OSError as read_own() does, and ValueError for text that is
    no JSON or is nested too deep."""
    try:
        return json.loads(read_own(path, most))
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def own_file(path: Path, hint: str) -> Path:
    """Returns the path of the file to replace, with links followed. Raises UsageError if the file, or a link to it, is
    another user's. Raises OSError."""
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
    """Returns the folder .fleet below `place`, or the folder `names` below .fleet. Creates it with mode 0700 if it is
    missing. Raises UsageError if it is another user's, and OSError."""
    with _refusing(f"remove it, or run this as the user that it belongs to: ls -ld {place}/.fleet"):
        return Path(own_home(*names, home=str(place)))


def seal(*values: object) -> str | None:
    """Returns the HMAC of JSON values, made with a random key in ~/.fleet that only this user can read. Makes the key
    if it is missing. Returns None if there is no home, or if the values are nested too deep."""
    import hmac  # it takes 4 ms, and most commands seal nothing

    # errors: there is no home, or it is another user's, or JSON is nested too deep (RecursionError is a RuntimeError)
    with best_effort("seal what is recorded by the key in ~/.fleet", (OSError, UsageError, RuntimeError)):
        text = json.dumps(json.loads(json.dumps(values, default=str)), sort_keys=True)
        with open(home(Path.home()) / KEY, "a+b", opener=private) as file, exclusive_lock(file.fileno()):
            file.seek(0)
            key = file.read(KEY_BYTES)
            if len(key) < KEY_BYTES:
                file.truncate(0)
                key = os.urandom(KEY_BYTES)
                file.write(key)
                file.flush()  # before the next process gets the lock
            if foreign(Path(file.name), os.fstat(file.fileno())) is not None:
                return None
        return hmac.new(key, text.encode(), "sha256").hexdigest()
    return None


def is_seal(given: object, *values: object) -> bool:
    return given is not None and given == seal(*values)
