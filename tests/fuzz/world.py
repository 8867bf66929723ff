"""A small world to sync in: two sources, two nodes with folders that runs write to, and what a step does to it. Each
sync is judged by the table (table.py)."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.delivery import brought
from fleet.delivery.source_id import identified
from fleet.delivery.tree import scan
from fleet.errors import FleetError
from fleet.model import Host, Inventory, Report, Result
from fleet.ops import get, sync
from fleet.protocol.state import STATE_FOLDERS
from fleet.requests.runs import Get
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from tests.fuzz.head import BOOT
from tests.fuzz.table import ANY, NONE, After, Entry, Files, Options, Record, Records, Table
from tests.fuzz.transport import Faults, ForkedTransport, Forker

Step = Sequence[Any]
SOURCES = ("A", "B")
EPOCH = 1_700_000_000  # of the files of a source; each change of one is three seconds after the one before
MARK = re.compile(rb"\.[0-9a-f]{32}\.fleet-.*")  # lies in a source while it is synced
WITNESS = b".fleet-source"
STAGE = ".fleet-get"  # what an interrupted get has left
REPLACED = "replaced"  # in the state folder: what --force took the place of


class Fault(Exception):
    """The real thing did what the table does not have."""


def see(root: Path, leave_out: Sequence[str] = ()) -> dict[str, Entry]:
    """What is below a folder, but for what fleet keeps there itself."""
    found: dict[str, Entry] = {}

    def below(folder: bytes, inside: str) -> None:
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for raw in names:
            name = os.fsdecode(raw)
            full, path = folder + b"/" + raw, inside + name
            info = os.lstat(full)
            if name.endswith(STATE_FOLDERS) or path in leave_out:
                continue
            mode = stat.S_IMODE(info.st_mode)
            if stat.S_ISDIR(info.st_mode):
                found[path] = Entry("d", b"", mode)
                below(full, path + "/")
            elif stat.S_ISLNK(info.st_mode):
                found[path] = Entry("l", os.readlink(full), ANY)
            elif stat.S_ISREG(info.st_mode):
                with open(full, "rb") as file:
                    found[path] = Entry("f", file.read(), mode)
            else:
                found[path] = Entry("o", b"", mode)

    below(os.fsencode(root), "")
    return found


def above(paths: Iterable[str]) -> set[str]:
    return {path[:at] for path in paths for at, char in enumerate(path) if char == "/"}


def show(path: str) -> str:
    return ascii(path if len(path) < 60 else path[:40] + "...")


class World:
    """setup: {"whole": {node: s}, "ahead": {node: s}, "lockless": {node: error}, "git": [source]}."""

    def __init__(self, base: Path, forker: Forker, setup: Mapping[str, Any]) -> None:
        self.base, self.setup, self.forker = base, setup, forker
        self.count = self.syncs = 0
        self.events: list[str] = []
        for name in (*SOURCES, "home", "outside", "n1/home", "n2/home"):
            (base / name).mkdir(parents=True)
        (base / "outside/victim").write_text("victim")
        (base / "outside/folder").mkdir()
        (base / "outside/folder/file").write_text("in a folder")
        for node in ("n1", "n2"):
            (base / node / "canary").write_text("canary")
        self.records: dict[str, Records] = {}
        self.sources: dict[str, set[int]] = {}  # of which sources the record of a destination may be
        self.born = dict(zip(SOURCES, itertools.count()))  # which source is at the path of each
        self.births = itertools.count(len(SOURCES))
        self.brought: dict[str, dict[str, tuple[str, bytes]]] = {name: {} for name in SOURCES}
        self.transport = ForkedTransport(forker, {node: base / node / "home" for node in ("n1", "n2")})
        self.tracked: dict[str, set[str]] = {}
        for name in setup.get("git", ()):
            self.git(name, "init", "-q")
            self.tracked[name] = set()

    # -- places ------------------------------------------------------------------------------------------------
    def place(self, where: str) -> Path:
        """A source, or "NODE:FOLDER"."""
        node, colon, folder = where.partition(":")
        return self.base / node / folder if colon else self.base / where

    def full(self, where: str, path: str) -> bytes:
        return os.fsencode(self.place(where)) + b"/" + os.fsencode(path)

    def files(self, where: str) -> dict[str, Entry]:
        return see(self.place(where), (".git", STAGE))

    def fresh(self, size: int) -> bytes:
        """Bytes that nobody else has."""
        self.count += 1
        return (b"%08d" % self.count + b"." * size)[: max(8, size)]

    def is_folder(self, where: str) -> bool:
        """Or nothing yet. Where a link leads is the node's own business."""
        full = os.fsencode(self.place(where))
        return os.path.realpath(full) == os.path.normpath(full) and (os.path.isdir(full) or not os.path.lexists(full))

    def clear_way(self, full: bytes) -> bool:
        """Whether there is a folder around, made where there was nothing. Nobody here goes through links."""
        around = os.path.dirname(full)
        if os.path.realpath(around) != os.path.normpath(around):
            return False
        try:
            os.makedirs(around, exist_ok=True)
        except OSError:
            return False
        return True

    def stamp(self, where: str, full: bytes, keep: os.stat_result | None = None) -> None:
        """Give what was written a time: a source's all differ, by more than any file system keeps. A node's is now,
        where its file system keeps that."""
        if keep is not None:
            os.utime(full, ns=(keep.st_mtime_ns, keep.st_mtime_ns), follow_symlinks=False)
        elif where in SOURCES or self.setup.get("whole", {}).get(where.partition(":")[0]):
            self.count += 1
            ns = (EPOCH + 3 * self.count) * 10**9 + 123456789
            os.utime(full, ns=(ns, ns), follow_symlinks=False)

    # -- what users and runs do -----------------------------------------------------------------------------------
    def write(self, where: str, path: str, size: int, how: str = "") -> None:
        """how: "rename" as careful programs do, "kept": the time stays what it was."""
        full, kept = self.full(where, path), None
        if not self.clear_way(full):
            return
        if os.path.lexists(full):
            kept = os.lstat(full)
            if not stat.S_ISREG(kept.st_mode):
                return
        coarse = self.setup.get("whole", {}).get(where.partition(":")[0])
        if "rename" in how or kept is None:
            new = os.path.dirname(full) + b"/.new"
            with open(new, "wb") as file:
                file.write(self.fresh(size))
            os.chmod(new, stat.S_IMODE(kept.st_mode) if kept is not None else 0o644)
            os.rename(new, full)
        else:
            with open(full, "r+b") as file:
                file.write(self.fresh(size))
                file.truncate()
        # a time that is kept shows in ctime; where that is whole seconds, too, nobody can see it
        self.stamp(where, full, kept if "kept" in how and where not in SOURCES and not coarse else None)

    def mkdir(self, where: str, path: str, mode: int = 0o755) -> None:
        full = self.full(where, path)
        if self.clear_way(full) and not os.path.lexists(full):
            os.mkdir(full)
            os.chmod(full, mode)

    def link(self, where: str, path: str, target: str) -> None:
        full = self.full(where, path)
        if not self.clear_way(full):
            return
        if os.path.islink(full):
            os.unlink(full)
        if not os.path.lexists(full):
            os.symlink(os.fsencode(target.replace("{outside}", str(self.base / "outside"))), full)

    def fifo(self, where: str, path: str) -> None:
        full = self.full(where, path)
        if self.clear_way(full) and not os.path.lexists(full):
            os.mkfifo(full, 0o644)

    def remove(self, where: str, path: str) -> None:
        full = self.full(where, path)
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        elif os.path.lexists(full):
            os.unlink(full)

    def move(self, where: str, path: str, to: str) -> None:
        old, new = self.full(where, path), self.full(where, to)
        if (new + b"/").startswith(old + b"/") or not os.path.lexists(old) or not self.clear_way(new):
            return
        self.remove(where, to)
        if os.path.lexists(old):
            os.rename(old, new)

    def chmod(self, where: str, path: str, mode: int) -> None:
        full = self.full(where, path)
        if os.path.lexists(full) and not os.path.islink(full):
            os.chmod(full, mode | 0o700 if os.path.isdir(full) else mode)

    def touch(self, where: str, path: str) -> None:
        full = self.full(where, path)
        if os.path.lexists(full):
            if where in SOURCES:
                self.stamp(where, full)
            else:
                os.utime(full, follow_symlinks=False)

    def copy(self, whence: str, where: str, path: str) -> None:
        """A user brings a file by hand, from a source to a node or the other way."""
        old, new = self.full(whence, path), self.full(where, path)
        if not os.path.lexists(old) or os.path.lexists(new) or not self.clear_way(new):
            return
        if os.path.isdir(old) and not os.path.islink(old):
            shutil.copytree(os.fsdecode(old), os.fsdecode(new), symlinks=True, copy_function=self._copy)
        elif os.path.isfile(old) or os.path.islink(old):
            self._copy(old, new, follow_symlinks=False)

    @staticmethod
    def _copy(old: Any, new: Any, *, follow_symlinks: bool = True) -> Any:
        if os.path.isfile(old) or os.path.islink(old):
            shutil.copy2(old, new, follow_symlinks=False)
        return new

    def rules(self, where: str, path: str, lines: Sequence[str]) -> None:
        """Write an ignore file; without lines, remove it."""
        full = self.full(where, path)
        if not lines:
            return self.remove(where, path)
        if self.clear_way(full) and not os.path.isdir(full):
            with open(full, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write("".join(line + "\n" for line in lines))
            self.stamp(where, full)
        return None

    def come_and_go(self, how: str) -> None:
        """What is at the paths of the sources becomes another, or the same under another name."""
        a, b, aside = self.place("A"), self.place("B"), self.base / "aside"
        if how == "exchange":
            a.rename(aside)
            b.rename(a)
            aside.rename(b)
            other = dict(zip(SOURCES, SOURCES[::-1], strict=True))
            self.born = {other[name]: birth for name, birth in self.born.items()}
            self.tracked = {other[name]: paths for name, paths in self.tracked.items()}
        elif how == "copy":
            shutil.rmtree(os.fsencode(b))
            subprocess.run(["cp", "-a", a, b], check=True)
            self.born["B"] = next(self.births)
            self.tracked.pop("B", None)
            if "A" in self.tracked:
                self.tracked["B"] = set(self.tracked["A"])
        elif how == "again":  # at the same path, and often with the same inode
            shutil.rmtree(os.fsencode(a))
            a.mkdir()
            self.born["A"] = next(self.births)
            self.tracked.pop("A", None)
        elif how == "clean":
            for name in self.tracked:
                self.git(name, "clean", "-fdxq")
        elif how == "forgotten":  # an image, a handed archive, another head
            (self.base / "home/.fleet/source-ids").unlink(missing_ok=True)
            self.born = {name: next(self.births) for name in SOURCES}
        for name in SOURCES:  # each is seen here, as by a sync to elsewhere
            identified(self.place(name))

    def track(self, where: str, path: str) -> None:
        """git add -f"""
        if where in self.tracked and os.path.lexists(self.full(where, path)):
            self.git(where, "add", "-f", "--", path)

    def git(self, where: str, *words: str) -> bytes:
        done = subprocess.run(
            [b"git", b"-C", os.fsencode(self.place(where)), *map(os.fsencode, words)],
            capture_output=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.base / "home")},
        )
        return done.stdout

    # -- what fleet does --------------------------------------------------------------------------------------------
    def listing(self, name: str) -> tuple[dict[str, Entry], Callable[[str, str], bool]]:
        """What a source sends, by the rules of Git and of fleet; and what a rule names."""
        found = self.files(name)
        tracked: set[str] = set()
        if name in self.tracked:
            tracked = {os.fsdecode(path) for path in self.git(name, "ls-files", "-z").split(b"\0") if path}
        levels: dict[str, dict[str, list[str]]] = {".gitignore": {}, ".fleetignore": {}}
        for path, entry in found.items():
            folder, _, base = path.rpartition("/")
            if base in levels and entry.kind == "f":
                levels[base][folder] = entry.body.decode("utf-8", "surrogateescape").splitlines()

        def verdict(which: str, path: str, kind: str) -> bool | None:
            """What the deepest file of rules that has a say decides, by its last line that matches."""
            parts = path.split("/")
            for depth in range(len(parts) - 1, -1, -1):
                inside = "/".join(parts[depth:])
                for line in reversed(levels[which].get("/".join(parts[:depth]), [])):
                    no, pattern = line[:1] == "!", line.lstrip("!")
                    if pattern.endswith("/"):
                        if kind != "d":
                            continue
                        pattern = pattern[:-1]
                    if pattern.startswith("/"):
                        hit = inside == pattern[1:]
                    elif pattern.startswith("*."):
                        hit = parts[-1].endswith(pattern[1:])
                    else:
                        hit = parts[-1] == pattern
                    if hit:
                        return not no
            return None

        def excluded(path: str, kind: str) -> bool:
            parts = path.split("/")
            steps = [("/".join(parts[: n + 1]), "d" if n + 1 < len(parts) else kind) for n in range(len(parts))]
            by_git = False
            for step, what in steps:
                if verdict(".fleetignore", step, what):
                    return True
                by_git = by_git or bool(verdict(".gitignore", step, what))
            below = kind == "d" and any(each.startswith(path + "/") for each in tracked)
            if by_git and path not in tracked and not below:
                return True
            here = found.get(path)
            if here is not None and here.kind == "o":  # neither sent nor gone
                return True
            brought = self.brought[name].get(path)
            return brought is not None and here is not None and here.version == brought and path not in tracked

        listed = {
            path: entry._replace(
                mode=entry.mode & ~0o002 if entry.kind == "d" and not entry.mode & 0o1000 else entry.mode
            )
            for path, entry in found.items()
            if entry.kind != "o" and not excluded(path, entry.kind)
        }
        # nor are folders that hold nothing but what get brought
        notes = self.brought[name]
        hollow = above(path for path, entry in found.items() if notes.get(path) == entry.version)
        hollow -= above(path for path in listed if path not in hollow)
        listed = {path: entry for path, entry in listed.items() if path not in hollow}
        return listed, lambda path, kind: path in hollow or excluded(path, kind)

    def sync(self, name: str, where: str, how: Mapping[str, Any] | None = None, faults: Faults | None = None) -> None:
        """One sync, and what the table says of it; then another one, which has nothing to do."""
        how, faults = dict(how or {}), dict(faults or {})
        if not self.is_folder(where):
            return
        node = where.partition(":")[0]
        before, alternatives, options = self.foresee(name, where, how)
        report = self.run_sync(name, where, how, faults)
        ok = report.results[0].ok
        self.note(f"{'ok' if ok else report.results[0].error}: {report.results[0].data}")
        most = how.get("max_delete", "all")
        changed = self.settle(name, where, before, alternatives, report.results[0], cut=bool(faults), most=most)
        if ok and not faults:
            again = self.run_sync(name, where, {}, {}).results[0]
            data = again.data
            if not again.ok or any(data[key] for key in ("sent", "changed", "deleted")):
                raise Fault(f"a second sync is not content: {again.error or dict(data)}")
            self.same(where, changed, self.files(where), "a second sync")
        self.check_rest(node)

    def run_sync(self, name: str, where: str, how: Mapping[str, Any], faults: Faults) -> Report:
        node = where.partition(":")[0]
        self.syncs += 1
        own = {key: self.setup[key][node] for key in ("whole", "ahead", "lockless") if node in self.setup.get(key, {})}
        transport = ForkedTransport(self.transport.forker, self.transport.homes, {node: {**own, **faults}})
        how = {key: tuple(value) if isinstance(value, list) else value for key, value in how.items()}
        how = {"max_delete": "all", **how}
        plan = sync.plan(Inventory((Host(node, node),)), Sync(self.place(name), str(self.place(where)), **how))
        source = self.whole(name)
        try:
            report = sync.run(plan, Runtime(transport))
        finally:
            if self.whole(name) != source and not str(self.place(where)).startswith(str(self.place(name))):
                raise Fault(f"a sync changed its source {name}")
        return report

    def whole(self, name: str) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for folder, folders, names in os.walk(os.fsencode(self.place(name))):
            for each in folders + names:
                info = os.lstat(os.path.join(folder, each))
                key = os.fsdecode(os.path.join(folder, each))
                if b"/.git" not in folder + b"/" + each and not MARK.fullmatch(each) and each != WITNESS:
                    found[key] = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ino)
        return found

    def foresee(self, name: str, where: str, how: Mapping[str, Any]) -> tuple[Files, dict[str, list[After]], Options]:
        listed, excluded = self.listing(name)
        sent = {os.fsdecode(entry[0].encode("utf-8", "surrogateescape")) for entry in scan(self.place(name)).entries}
        if sent != set(listed):
            odd = sorted(sent ^ set(listed))[0]
            raise Fault(f"{show(odd)} of {name} is {'' if odd in sent else 'not '}sent, against the rules")
        before, records = self.files(where), self.records.get(where, {})
        named = {}
        for path in {*before, *records}:
            for kind in "fdlo":
                named[path, kind] = path not in listed and excluded(path, kind)
        born, theirs = self.born[name], self.sources.get(where, set())
        other = bool(theirs) if born not in theirs else None if theirs != {born} else False
        options = Options(
            how.get("force", False), how.get("keep", False), how.get("delete_excluded", False), other, born
        )
        claimed: dict[str, bool] = {}
        for other_place, known in self.records.items():
            for path in known if other_place != where else ():
                full = os.path.relpath(os.path.join(self.place(other_place), path), self.place(where))
                here = before.get(full)
                put = {
                    each is not None and each.by != "own" and here is not None and each.version == here.version
                    for each in known[path]
                }
                if put != {False}:  # what is there by it
                    claimed[full] = claimed.get(full, False) or put == {True}
        table = Table(listed, named, before, records, options, claimed)
        return before, table.alternatives(), options

    def settle(
        self,
        name: str,
        where: str,
        before: Files,
        alternatives: Mapping[str, list[After]],
        result: Result,
        cut: bool,
        most: int | str | None = "all",
    ) -> Files:
        """What is there now must be one of what may be; it is what is known from here on. most: files that may be
        deleted, None: not all of them."""
        now, ok = self.files(where), result.ok
        if result.error is not None and result.error.kind == "max-delete":
            if most == "all":
                raise Fault(f"an error without a reason: {result.error}")
            self.same(where, before, now, "a sync that was refused")
            return now
        self.check_deleted(where, before, now, {entry.body for entry in self.listing(name)[0].values()}, most)
        stops = [path for path, after in alternatives.items() if any(each.stop for each in after)]
        must = [path for path, after in alternatives.items() if all(each.stop for each in after)]
        if ok and must:
            path = must[0]
            raise Fault(f"{show(path)} of {where} is {alternatives[path][0].stop}, the sync went on")
        if not ok and not cut and not stops:
            raise Fault(f"an error without a reason: {result.error}; {result.error and result.error.hint}")
        if not ok and (must or not cut):
            self.same(where, before, now, "a sync that was refused")
            return now
        records: Records = {}
        old = self.records.get(where, {})
        for path in sorted({*alternatives, *now}):
            entry, was = now.get(path), before.get(path)
            fits = [
                after
                for after in alternatives.get(path, [After(None, NONE)])
                if not after.stop
                and (after.entry is None and entry is None or after.entry and after.entry.is_like(entry))
            ]
            maybe = {after.record for after in fits}
            if (
                fits
                and all(after.goes for after in fits)
                and was is not None
                and (entry is None or was.version != entry.version)
                and not self.kept_aside(where, path, was)
            ):
                raise Fault(f"{show(path)} of {where}: --force replaced {was}, and no copy is left")
            if cut and not ok:
                # it was on its way: this version of the source may count as one that the node has been told of
                begun = [each.record for each in alternatives.get(path, []) if each.record and not each.stop]
                maybe |= {Record("own", None, each.source) for each in begun if each.by == "delivered"}
                if was == entry or was is not None and was.is_like(entry):
                    maybe |= old.get(path, frozenset([NONE]))
                    fits = fits or [After(entry, NONE)]
                elif not fits and self.on_its_way(was, entry, alternatives.get(path, [])):
                    maybe, fits = (
                        {NONE, *old.get(path, ()), *self.made(alternatives.get(path, []), entry)},
                        [After(entry, NONE)],
                    )
            if not fits:
                raise Fault(
                    f"{show(path)} of {where}: it was {was}, known as {self.say(old.get(path))}; it is {entry}, may be "
                    f"{[each.entry for each in alternatives.get(path, []) if not each.stop]}"
                )
            renewed = {each and replace(each, whose=self.born[name]) for each in maybe}
            maybe = renewed if ok else maybe | renewed  # it may have come as far as its record
            if maybe != {NONE}:
                records[path] = frozenset(maybe)
        for path, after in alternatives.items() if not cut else ():
            gone = after and all(each.folder for each in after)
            if gone and path in now and not any(other.startswith(path + "/") for other in now):
                raise Fault(f"{show(path)} of {where}: an empty folder that fleet made is left")
        self.records[where] = records
        if ok or not cut:
            self.sources[where] = {self.born[name]}
            return now
        if self.sources.setdefault(where, set()) - {self.born[name]}:
            self.records[where] = {p: r | old.get(p, frozenset([NONE])) for p, r in records.items()}
        self.sources[where].add(self.born[name])
        return now

    def check_deleted(self, where: str, before: Files, now: Files, bodies: set[bytes], most: int | str | None) -> None:
        """Not more was deleted than may be without a question."""
        known = {path for path in self.records.get(where, {}) if path in before and before[path].kind != "d"}
        gone = {path for path in known if path not in now}
        if not isinstance(most, str) and gone and (most or 0) < len(gone):
            kept = list(known - gone) or [path for path in gone if before[path].body in bodies]
            if most is not None or not kept:
                raise Fault(f"{len(gone)} of {len(known)} files of {where} were deleted without a question")

    @staticmethod
    def say(maybe: Any) -> str:
        return ", ".join(sorted(record.by if record else "nothing" for record in maybe or [None]))

    @staticmethod
    def on_its_way(was: Entry | None, entry: Entry | None, after: Sequence[After]) -> bool:
        """What a sync that was cut short may leave: it had taken something away that gives way, or a folder has not got
        its mode yet."""
        ends = [each.entry for each in after if not each.stop]
        if entry is None:
            return any(end is None or was is None or end.version != was.version for end in ends)
        if entry.kind == "d":
            return any(end is not None and end.kind == "d" for end in ends) or was is not None and was.kind == "d"
        return any(end is not None and end.version == entry.version for end in ends)

    @staticmethod
    def made(after: Sequence[After], entry: Entry | None) -> Iterator[Record | None]:
        for each in after:
            if entry is not None and each.entry is not None and each.entry.version == entry.version:
                yield each.record

    def kept_aside(self, where: str, path: str, was: Entry) -> bool:
        if was.kind == "d":
            return True
        for state in (
            self.place(where) / STATE_FOLDERS[0],
            self.place(where).parent / f".{self.place(where).name}{STATE_FOLDERS[0]}",
        ):
            for stamp in (state / REPLACED).glob("*") if (state / REPLACED).is_dir() else ():
                found = see(stamp).get(path)
                if found is not None and found.version == was.version:
                    return True
        return False

    def same(self, where: str, before: Files, now: Files, what: str) -> None:
        for path in sorted({*before, *now}):
            was, entry = before.get(path), now.get(path)
            if was != entry:
                raise Fault(f"{what} changed {show(path)} of {where}: it was {was}, it is {entry}")

    def check_rest(self, node: str) -> None:
        """Nothing around it has changed."""
        for name in ("n1", "n2"):
            if (self.base / name / "canary").read_text() != "canary":
                raise Fault(f"the canary of {name} has changed")
            odd = {path.name for path in (self.base / name).iterdir()} - {"home", "canary", "work"}
            if any(not path.endswith(STATE_FOLDERS) for path in odd):
                raise Fault(f"{sorted(odd)} came to {name}")
        if see(self.base / "outside") != self.outside():
            raise Fault("what links lead to has changed")

    def outside(self) -> dict[str, Entry]:
        if not hasattr(self, "_outside"):
            self._outside = see(self.base / "outside")
        return self._outside

    def itself(self, name: str, how: str) -> None:
        """The head is one of the hosts, and the destination is the source, or lies in it."""
        place = self.place(name)
        dest = {"link": self.base / f"link-{name}", "below": place / "below"}.get(how, place)
        if how == "link" and not dest.is_symlink():
            dest.symlink_to(place)
        before = self.files(name)
        inventory = Inventory((Host("n1", "n1"),))
        for _ in range(2 if how == "below" else 1):
            result = sync.run(sync.plan(inventory, Sync(place, str(dest))), Runtime(self.transport)).results[0]
            self.note(f"{how}: {result.error or dict(result.data)}")
        now = self.files(name)
        if how == "below":
            inside = {path: entry for path, entry in now.items() if path == "below" or path.startswith("below/")}
            if any("below/below" in path for path in inside):
                raise Fault("a destination in its source is sent along")
            now = {path: entry for path, entry in now.items() if path not in inside}
            shutil.rmtree(dest, ignore_errors=True)
            for state in place.glob(".below.fleet-*"):
                shutil.rmtree(state)
        self.same(name, before, now, "a sync of a folder to itself")
        if how != "below" and list(self.base.glob(f".{name}.fleet-*")):
            raise Fault(f"a sync of a folder to itself has begun to keep a record beside {name}")

    def two(self, first: Sequence[Any], second: Sequence[Any]) -> None:
        """Two syncs at once. Each of their ends is one of those that either alone could have."""
        if not self.is_folder(first[1]):
            return
        asked = [tuple(first), tuple(second)]
        where = asked[0][1]
        seen = [self.foresee(name, place, how) for name, place, how in asked if place == where]
        reports: dict[int, Report] = {}

        def work(number: int) -> None:
            name, place, how = asked[number]
            reports[number] = self.run_sync(name, place, how, {})

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        if len(reports) != 2:
            raise Fault("one of two syncs did not end")
        results = [reports[number].results[0] for number in range(2)]
        self.note(f"two: {[str(each.error) if each.error else dict(each.data) for each in results]}")
        same = asked[0][0] == asked[1][0]
        done = [number for number in range(2) if results[number].ok]
        if len(done) == 1 or same and done:
            self.settle(asked[done[0]][0], where, seen[0][0], seen[done[0]][1], results[done[0]], cut=False)
        elif done:
            # one after the other, in an order that nobody knows: what only the node has is still there
            now = self.files(where)
            for path, entry in seen[0][0].items():
                known = self.records.get(where, {}).get(path, frozenset([NONE]))
                own = all(record is None or record.version != entry.version or record.by == "own" for record in known)
                listed = [self.listing(name)[0].get(path) for name, _, _ in asked]
                alike = any(each is not None and each.version == entry.version for each in listed)
                if own and entry.kind != "d" and now.get(path) != entry and not alike:
                    raise Fault(f"{show(path)} of {where}: two syncs at once took away {entry}")
            self.forget(where, now, asked[0][0], asked[1][0])
        else:
            self.same(where, seen[0][0], self.files(where), "two syncs that were refused")
        self.check_rest(where.partition(":")[0])

    def forget(self, where: str, now: Files, *names: str) -> None:
        """Nobody knows which sync was the last one."""
        records = self.records.setdefault(where, {})
        for path, entry in now.items():
            maybe = set(records.get(path, frozenset([NONE])))
            for name in names:
                source = self.listing(name)[0].get(path)
                if source is not None:
                    maybe |= {Record(by, source.version, source.version) for by in ("delivered", "seen")}
                    if source.version != entry.version:
                        maybe.add(Record("own", None, source.version))
            records[path] = frozenset(maybe)
        self.sources[where] = {self.born[name] for name in names}

    def get(
        self, name: str, where: str, path: str, how: Mapping[str, Any] | None = None, faults: Faults | None = None
    ) -> None:
        """`fleet get` of a path on a node into a source. faults: of the head."""
        full = self.full(where, path)
        node = where.partition(":")[0]
        if not self.is_folder(where) or path not in self.files(where) or os.path.islink(full):
            return
        base = path.rpartition("/")[2]
        there = {base: self.files(where)[path]}
        there |= {
            base + inner[len(path) :]: e for inner, e in self.files(where).items() if inner.startswith(path + "/")
        }
        before = self.files(name)
        error = self.run_get(name, node, os.fsdecode(full), dict(how or {}), faults)
        now = self.files(name)
        self.note(f"get: {error}")
        notes = self.brought[name]
        for inner, entry in before.items():
            if now.get(inner) == entry:
                continue
            mine = notes.get(inner) != entry.version
            new = now.get(inner)
            if mine and entry.kind != "d" and (new is None or new.version != entry.version):
                raise Fault(f"get replaced {show(inner)} of {name}: it was {entry}, it is {new}")
        if error is None:
            for inner, entry in there.items():
                if entry.kind == "o":
                    continue
                new = now.get(inner)
                if new is None or new.version != entry.version:
                    raise Fault(f"get said it brought {show(inner)}, {entry}; here is {new}")
        known = all(
            entry.version == there[inner].version or notes.get(inner) == entry.version
            for inner, entry in before.items()
            if inner in there and entry.kind != "d"
        )
        if known and "get did not put it there" in (error or ""):
            raise Fault(f"get into {name} asks about what a get put there: {error}")
        for inner, new in now.items():
            if inner not in there and new != before.get(inner) and new.kind != "d":
                raise Fault(f"get wrote {show(inner)} of {name}")
            was = before.get(inner)
            if new.kind != "d" and (was is None or was.version != new.version):
                if inner not in brought.unchanged(self.place(name)):
                    raise Fault(f"get put {show(inner)} of {name} there and does not know it: {error}")
                notes[inner] = new.version
        self.check_rest(node)

    def run_get(self, name: str, node: str, what: str, how: dict[str, Any], faults: Faults | None) -> str | None:
        """What was wrong; None where nothing was."""
        if faults:
            asked = {"home": str(self.base / "home"), "boot": BOOT, **faults}
            said = json.dumps({"what": what, "to": str(self.place(name)), "how": how}).encode()
            status, out, err = self.forker.heads.run(asked, said, 60.0)
            if status == 0:
                error: str | None = json.loads(out)["error"]
                return error
            if status != 137:
                raise Fault(f"get failed: {status} {err.decode()[-2000:]}")
            return "killed"
        try:
            plan = get.plan(Inventory((Host(node, node),)), Get(what, to=self.place(name), **how))
            refused: Exception | None = get.run(plan, Runtime(self.transport)).results[0].error
        except FleetError as error:
            refused = error
        return None if refused is None else str(refused)

    def note(self, text: str) -> None:
        self.events.append(text[:400])

    def do(self, step: Step) -> None:
        getattr(self, step[0])(*step[1:])
