"""Part of install: takes back what a pip that was cut off, at whatever moment, had put into the interpreter.

pip restores what it replaces, yet leaves what it had already added. So the paths that it is about to add are noted
before, in ~/.fleet/wheels, and the note is worked off as soon as pip is through, or by the next install. By then
somebody may have installed things by hand: what an installed distribution lists as its own is left alone.
"""

import csv
import hashlib
import shutil
import zipfile


def note_of(answer):
    key = hashlib.sha256(answer["target"].encode()).hexdigest()[:16]
    return os.path.join(expand_user("~"), ".fleet", "wheels", "adding-" + key)


def places(answer, inside):
    """Where a file of a wheel goes; scripts, headers and data are not looked after."""
    first, _, rest = inside.partition("/")
    if first.endswith(".data"):
        scheme, _, inside = rest.partition("/")
        if scheme not in ("purelib", "platlib"):
            return []
    roots = sorted({answer["target"], answer["platlib"]})
    found = [os.path.normpath(os.path.join(root, inside)) for root in roots]
    return [path for path, root in zip(found, roots) if path.startswith(root + os.sep)]


def note_additions(answer, folder, todo):
    """Before pip: which wheels, and {wheel's name: [path that is not there yet]}, safe on disk."""
    paths = {}
    for wheel in todo:
        with zipfile.ZipFile(os.path.join(folder, wheel["file"])) as archive:
            inside = [name for name in archive.namelist() if not name.endswith("/")]
        infos = [name[: -len("METADATA")] for name in inside if re.match(r"[^/]+\.dist-info/METADATA$", name)]
        inside += [info + pips for info in infos for pips in ("INSTALLER", "REQUESTED", "direct_url.json")]
        paths[wheel["name"]] = [path for name in inside for path in places(answer, name) if not os.path.lexists(path)]
    path = note_of(answer)
    with open(path + ".new", "w") as f:
        json.dump({"wheels": todo, "paths": paths}, f)
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + ".new", path)


def claimed(roots, noted):
    """All paths that installed distributions list as their own, whoever installed them. The list is written last; what
    was noted and names no INSTALLER is the wheel's own copy of it, of an install that did not get so far."""
    found = set()
    for root in roots:
        for name in listing(root):
            if not name.endswith("-info") or name.startswith("~"):
                continue
            info = os.path.join(root, name)
            # the second is how pip told it of a setup.py
            for base, told in ((root, "RECORD"), (info, "installed-files.txt")):
                path = os.path.join(info, told)
                try:
                    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as f:
                        # of one that is longer than any wheel's, the first files are as good as all
                        listed = [row[0] for row in csv.reader(f.readlines(16 << 20)) if row]
                except (OSError, csv.Error):
                    continue
                if path not in noted or any(name.endswith(".dist-info/INSTALLER") for name in listed):
                    found.update(os.path.normpath(os.path.join(base, name)) for name in listed)
    return found


def take_back(answer, ask):
    """After pip: of every noted wheel that is not there now, what was added and is nobody's; then the note has done.
    ask: wheels -> (answer, {name: state})."""
    try:
        with open(note_of(answer)) as f:
            note = json.load(f)
    except (OSError, ValueError):
        return
    roots = (answer["target"], answer["platlib"])
    states = ask(note["wheels"])[1]
    gone = [name for name in note["paths"] if states[name]["state"] != "there"]
    kept = claimed(set(roots), {path for name in gone for path in note["paths"][name]}) if gone else set()
    for name in gone:
        for path in [path for path in note["paths"][name] if path not in kept]:
            folder, base = os.path.split(path)
            cached = os.path.join(folder, "__pycache__")
            stem = base[:-3] + "." if base.endswith(".py") else None
            beside = [os.path.join(cached, c) for c in listing(cached) if stem and c.startswith(stem)]
            for left in [path] + beside:
                try:
                    os.unlink(left)
                except OSError:
                    pass
            for empty in [cached, folder]:
                while empty not in roots:
                    try:
                        os.rmdir(empty)
                    except OSError:
                        break
                    empty = os.path.dirname(empty)
    os.unlink(note_of(answer))


def sweep(answer, wheels, states):
    """Take away what an interrupted pip leaves and trips over: a dist-info without RECORD, and "~" names."""
    for wheel in wheels:
        info = states[wheel["name"]].get("info")
        if info and os.path.dirname(info) == answer["target"]:
            shutil.rmtree(info, ignore_errors=True)
    ours = set()
    for wheel in wheels:
        ours.update(module[1:] for module in wheel["modules"])
    for name in listing(answer["target"]):
        if name.startswith("~") and (name[1:] in ours or re.match(r"[\w.]+-[^-]+\.dist-info$", name[1:])):
            shutil.rmtree(os.path.join(answer["target"], name), ignore_errors=True)


def listing(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []
