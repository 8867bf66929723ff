"""Checks that the training interpreter can import what a run needs: once for what is installed there."""

import json
import os

from fleet.node.facts.ask import NOT_HERE, last_line, run
from fleet.protocol.state import HOME, IMPORTS

# Runs in the training interpreter. What worked is kept with a digest of all that decides on it: the interpreter, its
# folders, the packages' files and those of their lib folders, what the linker and Python read of the environment.
# A module that is not there is named by another rule.
IMPORT = (
    NOT_HERE
    + r"""
import hashlib, json, os
from importlib.util import find_spec
cache, names = sys.argv[1], sys.argv[2:]
def inside(folder):
    try:
        return sorted((e.name, e.stat().st_size, e.stat().st_mtime) for e in os.scandir(folder))
    except OSError:
        return []
def changed(path):
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
def folders(name):
    try:
        found = list(find_spec(name).submodule_search_locations)
    except Exception:
        return []
    return found + [os.path.join(folder, "lib") for folder in found]
read = sorted(item for item in os.environ.items() if item[0].startswith(("LD_", "PYTHON", "CUDA_HOME")))
def key():
    parts = [sys.version, sys.executable, changed(os.path.realpath(sys.executable)), names, read, sys.path]
    parts += [changed(folder) for folder in sys.path] + [inside(folder) for name in names for folder in folders(name)]
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()
try:
    with open(cache) as f:
        known = [str(each) for each in json.load(f)][-50:]
except Exception:
    known = []
failed = {}
works = key() in known
for name in () if works else names:
    try:
        __import__(name)
    except BaseException as error:
        if not (isinstance(error, ImportError) and error.name == name):
            failed[name] = ("%s: %s" % (type(error).__name__, error)).strip()
if not failed and not works:
    try:
        if not os.path.isdir(os.path.dirname(cache)):
            os.mkdir(os.path.dirname(cache), 0o700)
        new = "%s.%d" % (cache, os.getpid())
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
            json.dump(known + [key()], f)  # what it compiled counts as well
        os.rename(new, cache)
    except OSError:
        pass
print()
print(json.dumps(failed))
sys.stdout.flush()
os._exit(0)
"""
)


def imports(path: str, env: "dict[str, str]", modules: "list[str]") -> "dict[str, str]":
    """Returns those of these modules that interpreter `path` cannot import, with the reason; modules that do not exist
    are left out."""
    try:
        status, out, err = run(
            [path, "-c", IMPORT, os.path.join(os.path.expanduser("~"), HOME, IMPORTS)] + modules, env
        )
    except OSError:
        return {}  # another step reports it
    try:
        failed = json.loads(out.strip().splitlines()[-1])
        return {name: last_line(str(why)) for name, why in failed.items()}
    except (ValueError, IndexError, AttributeError):
        ended = "ended by signal %d" % -status if status < 0 else "exit status %d" % status
        return {" and ".join(modules): "%s: %s" % (ended, last_line(err)) if last_line(err) else ended}
