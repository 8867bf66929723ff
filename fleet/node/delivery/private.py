"""Names what no link takes along, and no sync sends without consent: private keys, and folders that hold secrets."""

import os
import re
import stat

SECRETS = frozenset({".ssh", ".gnupg", ".aws", ".netrc", ".fleet"})
KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:\\[rn]|[ \t]*[\r\n])"  # also in JSON, and indented as in YAML
    rb"|^---- BEGIN SSH2 [A-Z ]*PRIVATE KEY ----|^PuTTY-User-Key-File-\d",
    re.MULTILINE,
)
KEY_BYTES = range(64, 65537)  # what is smaller or larger holds none
# of which a key is a part at most
CODE = (".py", ".pyi", ".sh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".go", ".rs", ".js", ".ts", ".java")
OTHER = (*CODE, ".md", ".rst", ".html", ".css", ".ipynb", ".png", ".jpg", ".npy", ".npz", ".pt", ".so", ".o", ".pyc")


def is_private_key(path: str, size: int) -> bool:
    """By what is in it. Not where it cannot be read: its next reader reports that."""
    if size not in KEY_BYTES or path.endswith(OTHER):
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return KEY.search(os.read(fd, KEY_BYTES.stop)) is not None
        finally:
            os.close(fd)
    except OSError:
        return False


def may_copy(credentials: "frozenset[str]", real: str, info: "os.stat_result") -> bool:
    """Returns whether what a link leads to may go in its place."""
    if {".git", *SECRETS}.intersection(real.split("/")) or real in credentials:
        return False
    return not stat.S_ISREG(info.st_mode) or not is_private_key(real, info.st_size)
