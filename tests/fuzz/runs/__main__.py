"""Runs, and what befalls them, drawn at random: `make fuzz-runs S=600 SEED=n`. A seed is a case: `--one SEED` plays it
again, alone, and tells all of it."""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tests.fuzz.runs.draw import Case, make
from tests.fuzz.runs.lab import LabWorld, a_lab, in_lab
from tests.fuzz.runs.model import Judge
from tests.fuzz.runs.play import Play
from tests.fuzz.runs.world import LIBC, Forges, World

MOST = 5
CASE_SECONDS = 240.0
OF_A_RANK = re.compile(r"rank \d+ attempt \d+ |ranks up")
Say = Callable[[str], None]


def out(text: str) -> None:
    print(text, flush=True)


def quiet(text: str) -> None: ...


def play(case: Case, forges: Forges, place: Path, say: Say = quiet, keep: Path | None = None) -> tuple[list[str], Play]:
    """What is wrong with a case, and its play. In a process of its own: it takes namespaces of its own."""
    world = World(place, forges, case.nodes, case.slots)
    played = Play(case, world, say)
    try:
        world.start()
        played.play()
        wrong = Judge(played).judge()
        if keep is not None:
            shutil.copytree(place, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("sock", "links", ".filler"))
    finally:
        world.close()
    return wrong, played


def told(case: Case, wrong: list[str], played: Play) -> str:
    """What is printed of a case that fails."""
    story = "\n".join(f"  {seconds:6.2f} s  {what}" for seconds, what in played.story)
    said = "\n".join(f"  {typed}: exit code {typed.code}\n{indented(typed.text)}" for typed in played.world.typed)
    what = "\n".join(f"  {each}" for each in wrong)
    again = f"python -m tests.fuzz.runs --one={case.seed}"
    return f"seed {case.seed}: {wrong[0]}\n{case}\n{story}\n{said}\nwrong:\n{what}\nagain: {again}\n"


def indented(text: str) -> str:
    """Without what ranks wrote, and no more than its end."""
    lines = [line for line in text.splitlines() if not OF_A_RANK.search(line) and not line.startswith("{")]
    return "\n".join(f"      {line}" for line in lines[-12:])


def failed(what: str, text: str) -> dict[str, object]:
    return {"wrong": [what], "text": text, "done": []}


class Workers:
    """Plays several cases at once, each in a process of its own."""

    def __init__(self, forges: Forges, folder: Path, keep: Path | None = None) -> None:
        self.forges, self.folder, self.keep = forges, folder, keep
        self.running = dict[int, tuple[int, int, bytearray, float]]()  # pipe -> (pid, seed, what came, when it began)

    def begin(self, seed: int) -> None:
        reader, writer = os.pipe()
        place = self.folder / str(seed)
        place.mkdir()
        pid = os.fork()
        if not pid:
            os.close(reader)
            os.setsid()
            LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # with this process
            result: dict[str, object] = {}
            try:
                case = make(seed)
                keep = self.keep and self.keep / str(seed)
                wrong, played = play(case, self.forges, place, keep=keep)
                done = [f"{fault.actor}: {fault.what}" for fault in played.done]
                result = {"wrong": wrong, "text": told(case, wrong, played) if wrong else "", "done": done}
            except BaseException:
                result = {
                    "wrong": ["the fuzzer itself failed"],
                    "text": f"seed {seed}: {traceback.format_exc()}",
                    "done": [],
                }
            finally:
                data = json.dumps(result).encode()
                while data:
                    data = data[os.write(writer, data) :]
                os._exit(0)
        os.close(writer)
        self.running[reader] = (pid, seed, bytearray(), time.monotonic())

    def wait(self, seconds: float) -> list[tuple[int, dict[str, object]]]:
        """Those that came to their end."""
        ended = []
        for reader in select.select(list(self.running), [], [], seconds)[0]:
            pid, seed, came, _ = self.running[reader]
            data = os.read(reader, 1 << 16)
            came += data
            if not data:
                ended.append(
                    (seed, json.loads(came) if came else failed("it was killed", f"seed {seed}: it was killed"))
                )
                self._over(reader)
        for reader, (pid, seed, _, began) in list(self.running.items()):
            if time.monotonic() - began > CASE_SECONDS:
                os.kill(pid, signal.SIGKILL)
                ended.append(
                    (seed, {"wrong": ["no end"], "text": f"seed {seed}: no end in {CASE_SECONDS:g} s", "done": []})
                )
                self._over(reader)
        return ended

    def _over(self, reader: int) -> None:
        pid, seed, _, _ = self.running.pop(reader)
        os.close(reader)
        os.waitpid(pid, 0)
        shutil.rmtree(self.folder / str(seed), ignore_errors=True)

    def end(self) -> None:
        for reader, (pid, _, _, _) in list(self.running.items()):
            os.kill(pid, signal.SIGKILL)
            self._over(reader)


def hunt(
    first: int,
    seconds: float,
    most: int = MOST,
    *,
    jobs: int | None = None,
    count: int | None = None,
    say: Say = out,
    keep: Path | None = None,
    about: str = "",
) -> list[str]:
    """What was found from seed `first` on, in so many seconds, or so many cases. about: of those cases only whose text
    has this pattern."""
    jobs = jobs or 4 * (os.cpu_count() or 1)
    began, seed, played, found = time.monotonic(), first, 0, list[str]()
    befell = collections.Counter[str]()
    with tempfile.TemporaryDirectory(prefix="fleet-runs-", ignore_cleanup_errors=True) as folder:
        forges = Forges(Path(folder))
        workers = Workers(forges, Path(folder), keep)
        try:
            while len(found) < most:
                more = time.monotonic() - began < seconds and (count is None or seed < first + count)
                while more and len(workers.running) < jobs and (count is None or seed < first + count):
                    if re.search(about, str(make(seed)), re.DOTALL):
                        workers.begin(seed)
                    seed += 1
                if not workers.running:
                    break
                for _, result in workers.wait(1.0):
                    played += 1
                    befell.update(result.get("done", []))  # type: ignore[call-overload]
                    if result["wrong"]:
                        took = time.monotonic() - began
                        text = str(result["text"])
                        found.append(text)
                        say(f"after {took:.1f} s, {text}")
        finally:
            workers.end()
            forges.close()
    took = time.monotonic() - began
    say("what befell them: " + ", ".join(f"{what} {times}" for what, times in sorted(befell.items())))
    say(f"{played} runs from seed {first} on, in {took:.0f} s: {len(found)} faults")
    return found


def hunt_in_lab(first: int, seconds: float, most: int, count: int | None, say: Say = out) -> list[str]:
    """The same in a lab with real sshd, one after the other."""
    began, seed, found = time.monotonic(), first, list[str]()
    with tempfile.TemporaryDirectory(prefix="fleet-runs-") as folder, a_lab(Path(folder)) as lab:
        while time.monotonic() - began < seconds and len(found) < most and (count is None or seed < first + count):
            case, world = in_lab(make(seed), lab.names), LabWorld(lab, seed)
            played = Play(case, cast(World, world))
            try:
                played.play()
                if wrong := Judge(played).judge():
                    found.append(told(case, wrong, played))
                    say(f"after {time.monotonic() - began:.1f} s, {found[-1]}")
            finally:
                world.close()
            seed += 1
    say(
        f"{seed - first} runs in the lab from seed {first} on, in {time.monotonic() - began:.0f} s: {len(found)} faults"
    )
    return found


def one(seed: int, keep: Path | None) -> int:
    case = make(seed)
    out(f"seed {seed}:\n{case}")
    with tempfile.TemporaryDirectory(prefix="fleet-runs-", ignore_cleanup_errors=True) as folder:
        forges, place = Forges(Path(folder)), Path(folder, "case")
        place.mkdir()
        pid = os.fork()
        if not pid:
            code = 2
            try:
                wrong, played = play(case, forges, place, out, keep)
                out(told(case, wrong, played) if wrong else f"seed {seed}: nothing is wrong")
                code = int(bool(wrong))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        forges.close()
    return code


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.runs")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="begin with this one [by the clock]")
    parser.add_argument("--count", type=int, help="so many cases at most")
    parser.add_argument("--jobs", type=int, help="cases at once [four a core]")
    parser.add_argument("--most", type=int, default=MOST, help="faults, then it ends")
    parser.add_argument("--one", type=int, metavar="SEED", help="this case, alone")
    parser.add_argument("--lab", action="store_true", help="in a lab, with real sshd")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copies of what was written, by seed")
    parser.add_argument("--about", default="", metavar="REGEX", help="only cases whose text has it")
    given = parser.parse_args()
    if given.one is not None:
        return one(given.one, given.keep)
    if given.lab:
        return int(bool(hunt_in_lab(given.seed, given.seconds, given.most, given.count)))
    found = hunt(
        given.seed, given.seconds, given.most, jobs=given.jobs, count=given.count, keep=given.keep, about=given.about
    )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
