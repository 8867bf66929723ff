"""Runs tools of this node for their output, and queries an interpreter about itself."""

import json
import os
import subprocess

from fleet.node.base.types import Any, Callable
from fleet.node.base.wire import start_thread
from fleet.protocol.state import HOME, IMPORTS

OUTPUT_LIMIT = 1 << 20
# `python -c` looks for modules in its working folder first. A user's modules may be there: this removes the folder
NOT_HERE = """
import sys
if sys.path and not sys.path[0]:
    del sys.path[0]
"""
# A program for the training interpreter, whatever its version. It reads versions of packages as text, from metadata and
# version files: importing torch would take seconds. Its last line is JSON; a sitecustomize may print lines before that.
ASK_PYTHON = (
    NOT_HERE
    + r"""
import errno, json, os, re
from importlib.util import find_spec
def read(path):
    try:
        with open(path, errors="replace") as f:
            return f.read(1 << 16)
    except OSError:
        return ""
def assigned(text, name):
    found = re.search(r"^%s[ \t]*(?::[^=\n]*)?=[ \t]*(.+)$" % name, text, re.M)
    value = found.group(1).strip().strip("'\"") if found else None
    return None if value in ("None", "") else value
def where(name):
    try:
        return list(find_spec(name).submodule_search_locations)[0]
    except Exception:
        return None
packages, unreadable = {}, []
for folder in sys.path:
    try:
        names = os.listdir(folder)
    except OSError as error:
        if error.errno == errno.EACCES:
            unreadable.append(folder)
        continue
    for entry in names:
        found = re.match(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info$", entry)
        if found:
            packages.setdefault(re.sub(r"[-_.]+", "-", found.group(1)).lower(), found.group(2))
torch = deepspeed = None
folder = where("torch")
if folder:
    text = read(os.path.join(folder, "version.py"))
    nccl = sorted(v for k, v in packages.items() if re.match(r"nvidia-nccl-cu\d+$", k))
    torch = {"version": assigned(text, "__version__") or packages.get("torch"), "cuda": assigned(text, "cuda"),
             "hip": assigned(text, "hip"), "nccl": nccl[-1] if nccl else None}
folder = where("deepspeed")
if folder:
    text = read(os.path.join(folder, "git_version_info_installed.py"))
    deepspeed = {"version": assigned(text, "version") or packages.get("deepspeed"),
                 "ops": sorted(re.findall(r"'(\w+)': (?:True|1)", assigned(text, "installed_ops") or ""))}
print()
print(json.dumps({"executable": sys.executable, "version": ".".join(map(str, sys.version_info[:3])),
                  "implementation": sys.implementation.name, "packages": packages, "torch": torch,
                  "deepspeed": deepspeed, "unreadable": unreadable}))
"""
)

# A program that prints the file that `python -m NAME` would run. It does not execute packages: an empty module takes
# the place of each. In a package that sets its __path__ itself, it counts every module as found.
FIND_MODULE = (
    NOT_HERE
    + r"""
import os
from importlib.util import find_spec
from types import ModuleType
name, folder = sys.argv[1:]
if not getattr(sys.flags, "safe_path", False):
    sys.path.insert(0, folder)
def find(name):
    above = name.rpartition(".")[0]
    package = find(above) if above else None
    if package and above not in sys.modules:
        sys.modules[above] = module = ModuleType(above)
        module.__spec__ = package
        if package.submodule_search_locations is not None:
            module.__path__ = package.submodule_search_locations
    try:
        spec = find_spec(name)
    except Exception:
        spec = None
    return spec or (package if package and makes_its_path(package) else None)
def makes_its_path(package):
    try:
        text = package.loader.get_source(package.name) or ""
    except Exception:
        return False
    return "__path__" in text or "declare_namespace" in text
spec = find(name)
if spec and spec.submodule_search_locations is not None and spec.name == name:
    spec = find(name + ".__main__")
path = (spec and spec.origin) or ""
while path and not os.path.isfile(path):
    path = os.path.dirname(path)  # of a module in an archive the archive
print()
print(path)
"""
)


# A program for the training interpreter: tries to import modules. After a success it stores a digest of everything that
# can change the result: the interpreter, its folders, the files of the packages and of their lib folders, and variables
# of the linker and Python. Next time it skips the imports if the digest is the same. It reports no missing modules:
# another rule does.
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


def run(
    argv: "list[str]", env: "dict[str, str]", cwd: "str | None" = None, stdin: "Any" = subprocess.DEVNULL
) -> "tuple[int, str, str]":
    """Runs a tool, and returns (exit code, or minus the signal's number; stdout; stderr). Raises OSError if the tool
    cannot be started."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(argv, env=env, cwd=cwd, stdin=stdin, stdout=pipe, stderr=pipe)
    assert child.stdout and child.stderr
    errors = child.stderr
    texts: list[bytes] = []

    def read() -> None:
        with errors:
            texts.append(errors.read(OUTPUT_LIMIT))

    reader = start_thread(read)
    with child.stdout:
        out = child.stdout.read(OUTPUT_LIMIT)
    status = child.wait()
    reader.join(1.0)
    return status, out.decode("utf-8", "replace"), b"".join(texts).decode("utf-8", "replace")


def last_line(*texts: str) -> str:
    """Returns the last line of the texts that is not empty. In a tool's output it usually has the reason of a
    failure."""
    lines = [line.strip() for t in texts for line in t.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def ask_interpreter(
    path: str, env: "dict[str, str]", run: "Callable[..., tuple[int, str, str]]" = run
) -> "tuple[dict[str, Any] | None, str | None]":
    """Returns (the facts that ASK_PYTHON prints, None), or (None, why the interpreter does not work). path: the
    interpreter. run: runs an argv as the function run() does."""
    status, out, err = 126, "", ""
    try:
        status, out, err = run([path, "-c", ASK_PYTHON], env)
        return json.loads(out.strip().splitlines()[-1]), None
    except (OSError, ValueError, IndexError) as error:
        reason = str(error) if isinstance(error, OSError) else last_line(err)
        return None, "%s: %s" % (path, reason or "printed nothing, exit status %d" % status)


def imports(
    path: str, env: "dict[str, str]", modules: "list[str]", run: "Callable[..., tuple[int, str, str]]" = run
) -> "dict[str, str]":
    """Returns module -> reason, for each module that the interpreter `path` cannot import. Omits missing modules. If
    the interpreter itself ends, the key is the names of all modules."""
    try:
        status, out, err = run(
            [path, "-c", IMPORT, os.path.join(os.path.expanduser("~"), HOME, IMPORTS)] + modules, env
        )
    except OSError:
        return {}  # the step "python" reports that the interpreter cannot be started
    try:
        failed = json.loads(out.strip().splitlines()[-1])
        return {name: last_line(str(why)) for name, why in failed.items()}
    except (ValueError, IndexError, AttributeError):
        ended = "ended by signal %d" % -status if status < 0 else "exit status %d" % status
        return {" and ".join(modules): "%s: %s" % (ended, last_line(err)) if last_line(err) else ended}
