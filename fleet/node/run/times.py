"""Records the sizes of a run's logs, at most once a second, to know when they grew. As a program, it sends the sizes
that the logs had some seconds ago, precise to a second (older times are less precise).

spec: {"run", "ago": seconds}. Sends J {"event": "since", "offsets": {name: bytes}}, where a log without an offset was
empty then, or J {"event": "failed", "message", "hint"}.
"""

import os
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.errors import answer
from fleet.node.base.files import append_whole, replace_file
from fleet.node.base.processes import read_file
from fleet.node.base.run_folder import known_folder
from fleet.node.base.types import TYPE_CHECKING, run, run_specs
from fleet.protocol.state import METRICS, TIMES, is_log

if TYPE_CHECKING:
    Mark = tuple[float, dict[str, int]]

EVERY_SECONDS = 1.0
MOST = 4096  # if there are more marks, the older half is thinned


class Times:
    """Writes marks to the file TIMES. A mark is a time, and the size of each log that grew since the last mark. The
    supervisor calls look() at every tick."""

    def __init__(self, folder: str, clock: Clock = CLOCK) -> None:
        self.folder, self.path, self.clock = folder, os.path.join(folder, TIMES), clock
        self.sizes: dict[str, int] = {}
        self.marks: list[Mark] = []
        self.due = 0.0

    def look(self, now: float) -> None:
        if now >= self.due:
            self.due = now + EVERY_SECONDS
            self.mark()

    def mark(self) -> None:
        """Adds a mark if a log grew. If that fails because the disk is full, a later mark has these sizes."""
        with suppress(OSError):
            names = [name for name in os.listdir(self.folder) if is_log(name) and name != METRICS]
            sizes = {name: os.stat(os.path.join(self.folder, name)).st_size for name in names}
            grown = {name: size for name, size in sizes.items() if size != self.sizes.get(name, 0)}
            if grown and self.add((self.clock.time(), grown)):
                self.sizes.update(grown)

    def add(self, mark: "Mark") -> bool:
        """Writes a mark as a whole line, or writes nothing, so that the next line never continues a cut one. Returns
        whether the line was written. Raises OSError."""
        self.marks.append(mark)
        if len(self.marks) <= MOST:
            return append_whole(self.path, text_of([mark]))
        self.marks = thinned(self.marks)
        replace_file(os.fsencode(self.path), text_of(self.marks), 0o600, durable=False)
        return True


def text_of(marks: "list[Mark]") -> bytes:
    return b"".join(json.dumps(mark).encode() + b"\n" for mark in marks)


def thinned(marks: "list[Mark]") -> "list[Mark]":
    """Returns the marks with their older half merged in pairs. A merged mark has the time of the second one."""
    half = len(marks) // 4 * 2
    return [(marks[i + 1][0], {**marks[i][1], **marks[i + 1][1]}) for i in range(0, half, 2)] + marks[half:]


def sizes_at(folder: str, when: float) -> "dict[str, int]":
    """Returns the sizes of the logs at the last mark before `when`. Some bytes beyond these sizes may have been written
    before `when`, but all bytes up to these sizes were."""
    sizes: dict[str, int] = {}
    for line in read_file(os.path.join(folder, TIMES)).split(b"\n"):
        with suppress(ValueError, TypeError):  # a line that was cut short
            marked, grown = json.loads(line.decode())
            if marked <= when:
                sizes.update(grown)
    return sizes


def since(spec: "run_specs.SinceSpec", clock: Clock = CLOCK) -> "run.Since":
    folder = known_folder(spec["run"])
    return {"event": "since", "offsets": sizes_at(folder, clock.time() - spec["ago"])}


def main() -> None:
    answer(since)
