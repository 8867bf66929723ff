"""Finds the training interpreter, and which of a set of wheels are installed in it."""

import hashlib
import json
import os
import subprocess

from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Sequence
from fleet.node.base.types import wheels as messages
from fleet.node.facts.ask import last_line
from fleet.node.facts.tools import Tools
from fleet.protocol.state import WHEELS, below_home

# Runs in the training interpreter, of any version. Its request is on stdin, the response is JSON on its last line.
# A distribution is "there" if its RECORD lists the files of this very wheel, and they exist. pip writes that RECORD
# last, over the wheel's own one. Only pip's has an entry for INSTALLER, so an interrupted install lacks that entry.
ASK_WHEELS = r"""
import csv, hashlib, json, os, platform, re, sys, sysconfig
asked = json.loads(sys.stdin.read())
if sys.path and not sys.path[0]:
    del sys.path[0]
def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()
installed = {}
for folder in sys.path:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        continue
    for entry in names:
        found = re.match(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(dist|egg)-info$", entry)
        if found and not entry.startswith("~"):
            installed.setdefault(normal(found.group(1)), []).append(
                (found.group(2), folder, os.path.join(folder, entry), found.group(3)))
def rows_of(info):
    with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as f:
        if os.fstat(f.fileno()).st_size > 16 << 20:
            raise ValueError("longer than any")
        return [row for row in csv.reader(f) if len(row) == 3]
def own(path):
    base = path.rsplit("/", 1)[-1]
    beside = re.match(r"[^/]+\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json|RECORD\.\w+)$", path)
    return not (beside or path.startswith("../") or os.path.isabs(path) or base.endswith(".pyc"))
def state(wheel):
    found = installed.get(wheel["name"])
    if not found:
        return {"state": "absent"}
    version, folder, info, kind = found[0]
    if kind == "egg":
        return {"state": "other", "version": version}
    try:
        rows = rows_of(info)
    except (OSError, ValueError, csv.Error):
        return {"state": "broken", "version": version, "why": "an interrupted install", "info": info}
    text = "\n".join(sorted("%s,%s,%s" % tuple(row) for row in rows if own(row[0])))
    if hashlib.sha256(text.encode("utf-8")).hexdigest() != wheel["identity"]:
        return {"state": "other", "version": version}
    if not any(row[0].endswith(".dist-info/INSTALLER") for row in rows):
        return {"state": "broken", "version": version, "why": "an interrupted install"}
    gone = []
    for path, digest, size in rows:
        try:
            here = os.stat(os.path.join(folder, path)).st_size
            if own(path) and size and here != int(size):
                gone.append(path)
        except OSError:
            if not path.endswith(".pyc"):
                gone.append(path)
    if gone:
        return {"state": "broken", "version": version, "why": "%d of its files are gone or cut, %s first" % (
            len(gone), gone[0])}
    return {"state": "there", "version": version}
answer = {"executable": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix,
          "implementation": sys.implementation.name, "platform": sysconfig.get_platform(),
          "soabi": sysconfig.get_config_var("SOABI"), "target": sysconfig.get_path("purelib"),
          "states": [state(wheel) for wheel in asked["wheels"]], "dists": [], "pip": None, "tags": []}
info = sys.implementation.version
answer["markers"] = {
    "implementation_name": sys.implementation.name, "os_name": os.name, "sys_platform": sys.platform,
    "implementation_version": "%d.%d.%d" % info[:3] + ("" if info[3] == "final" else info[3][0] + str(info[4])),
    "platform_machine": platform.machine(), "platform_release": platform.release(),
    "platform_system": platform.system(), "platform_version": platform.version(),
    "platform_python_implementation": platform.python_implementation(),
    "python_full_version": platform.python_version(), "python_version": "%d.%d" % sys.version_info[:2]}
marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
answer["managed"] = sys.prefix == sys.base_prefix and os.path.exists(marker)
if asked.get("judge"):
    try:
        import pip
        answer["pip"] = pip.__version__
        try:
            from pip._internal.utils.compatibility_tags import get_supported
        except ImportError:
            from pip._internal.pep425tags import get_supported
        answer["tags"] = [tag if isinstance(tag, str) else "-".join(tag) if isinstance(tag, tuple) else str(tag)
                          for tag in get_supported()]
    except ImportError:
        pass
    # in the order of sys.path, as pip lists them; as the head takes it, or not at all
    name, text, seen = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$", r"[ -~]{1,1000}$", {}
    for folder in sys.path:
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in entries:
            lines = None
            for inside in ("METADATA", "PKG-INFO", "") if re.match(r"[^~].*\.(dist|egg)-info$", entry) else ():
                try:
                    with open(os.path.join(folder, entry, inside).rstrip("/"), errors="replace", encoding="utf-8") as f:
                        lines = f.read(1 << 18).split("\n\n")[0].splitlines()
                    break
                except OSError:
                    pass
            fields = {}
            for line in lines or ():
                key, _, value = line.partition(":")
                fields.setdefault(key.lower(), []).append(value.strip())
            dist = {"name": normal(fields.get("name", [""])[0]), "version": fields.get("version", [""])[0],
                    "requires": [need for need in fields.get("requires-dist", ()) if re.match(text, need)],
                    "extras": [extra for extra in fields.get("provides-extra", ()) if re.match(name, extra)]}
            if re.match(name, dist["name"]) and re.match(text, dist["version"]) and len(seen) < 5000:
                seen.setdefault(dist["name"], dist)
    answer["dists"] = list(seen.values())
print()
print(json.dumps(answer))
"""


def ask_python(
    argv: "list[str]", stdin: bytes, env: "dict[str, str]", seconds: float, cwd: "str | None" = None
) -> "tuple[int | None, str, str]":
    """Returns (status, stdout, stderr) of a program. It is killed after `seconds`; then the status is None."""
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(argv, input=stdin, stdout=pipe, stderr=pipe, timeout=seconds, env=env, cwd=cwd)
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode("utf-8", "replace"), (late.stderr or b"").decode("utf-8", "replace")
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def training_python(tools: "Tools") -> str:
    """Activates the environment, and returns the interpreter's path. Then `tools.env` is the interpreter's environment.
    Raises Refused."""
    problem = tools.activate()["activate"]
    if problem:
        raise Refused("the activate line failed: %s" % problem, "run it by hand there: ssh HOST, then bash")
    path, tools.env = tools.interpreter()
    return path


def pip_environment(tools: "Tools", mark: str, **more: str) -> "dict[str, str]":
    """Returns the environment for pip, without the node's pip configuration: pip must not use any index."""
    env = {name: value for name, value in tools.env.items() if not name.startswith("PIP_")}
    return dict(env, PIP_CONFIG_FILE=os.devnull, FLEET_EXEC_ID=mark, **more)


def wheel_answer(
    path: str, tools: "Tools", wheels: "Sequence[messages.WheelIdentity]", judge: bool, seconds: float
) -> "dict[str, Any]":
    """Returns the result of ASK_WHEELS in the interpreter at `path`. judge: True also fills pip, tags and dists.
    Raises Refused."""
    request = json.dumps({"wheels": wheels, "judge": judge}).encode()
    try:
        status, out, err = ask_python([path, "-c", ASK_WHEELS], request, tools.env, seconds, "/")
        if status is None:
            raise Refused("%s gave no answer in %d s" % (path, seconds), "the file system that it lies on hangs")
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return answer
    except (OSError, ValueError, IndexError) as error:
        reason = str(error) if isinstance(error, OSError) else last_line(err) or "it printed nothing"
        raise Refused(
            "%s does not work: %s" % (path, reason), "correct 'python' of this host in the inventory"
        ) from None


def verified_file(answer: "dict[str, Any]", wheel: "messages.WheelIdentity") -> str:
    """Returns the path of a file that exists after this wheel was imported in this interpreter. It is empty."""
    return _note(answer["executable"], answer["version"], wheel["name"], wheel["identity"])


def begun_file(answer: "dict[str, Any]", wheel: "messages.WheelIdentity | messages.Dist") -> str:
    """Returns the path of a file that exists from the start of an install of this distribution until its import."""
    return _note(answer["executable"], wheel["name"], wheel["version"]) + "-begun"


def _note(*key: str) -> str:
    return below_home(WHEELS, "verified", hashlib.sha256("\n".join(key).encode()).hexdigest())
