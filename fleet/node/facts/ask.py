"""Tools of this node, run for what they say; what an interpreter tells of itself."""

import json
import subprocess

from fleet.node.base.types import Any
from fleet.node.base.wire import start_thread

OUTPUT_LIMIT = 1 << 20
# Runs in the training interpreter, whatever its age. Versions are read from metadata and version files as text:
# importing torch would cost seconds. JSON on the last line: a sitecustomize may print before it.
ASK_PYTHON = r"""
import json, os, re, sys
from importlib.util import find_spec
if sys.path and not sys.path[0]:
    del sys.path[0]
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
packages = {}
for folder in sys.path:
    try:
        names = os.listdir(folder)
    except OSError:
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
                  "deepspeed": deepspeed}))
"""

# where `python -m NAME` finds it; a package is imported only where looking at files says nothing
FIND_MODULE = r"""
import os, sys
from importlib.util import find_spec
name, sys.path[0] = sys.argv[1:]
def find(name):
    top, *inner = name.split(".")
    spec = find_spec(top)
    if not inner or spec is None:
        return spec and (spec.origin if spec.submodule_search_locations is None else find(name + ".__main__"))
    for folder in spec.submodule_search_locations or ():
        path = os.path.join(folder, *inner)
        for file in (path + ".py", os.path.join(path, "__main__.py")):
            if os.path.isfile(file):
                return file
    spec = find_spec(name)
    return spec and spec.origin
try:
    found = find(name)
except (ImportError, ValueError, AttributeError):
    found = None
print()
print(found or "")
"""


def run(argv: "list[str]", env: "dict[str, str]") -> "tuple[int, str, str]":
    """(status, stdout, stderr) of a tool; OSError where it cannot be started."""
    child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout and child.stderr
    told = child.stderr
    said: list[bytes] = []
    reader = start_thread(lambda: said.append(told.read(OUTPUT_LIMIT)))
    with child.stdout:
        out = child.stdout.read(OUTPUT_LIMIT)
    status = child.wait()
    reader.join(1.0)
    return status, out.decode("utf-8", "replace"), b"".join(said).decode("utf-8", "replace")


def last_line(*texts: str) -> str:
    """The last thing said in any of the texts: where tools put the reason."""
    lines = [line.strip() for t in texts for line in t.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def ask_interpreter(path: str, env: "dict[str, str]") -> "tuple[dict[str, Any] | None, str | None]":
    """(what ASK_PYTHON tells, None), or (None, why it does not work)."""
    status, out, err = 126, "", ""
    try:
        status, out, err = run([path, "-c", ASK_PYTHON], env)
        return json.loads(out.strip().splitlines()[-1]), None
    except (OSError, ValueError, IndexError) as error:
        reason = str(error) if isinstance(error, OSError) else last_line(err)
        return None, "%s: %s" % (path, reason or "said nothing, exit status %d" % status)
