"""How much of fleet/ the tests run, on the head and on nodes: `make coverage`.

pytest measures where FLEET_COVERAGE names a folder; `python -m tests.measure FOLDER` puts together what came of it,
writes FOLDER/report and prints the total.

A node program is started by the system's python with nothing but the text that it is sent (-I -S). What measures it is
sent before that text: a few lines, as `import coverage` takes longer than most of these programs. What ran is noted
when the program ends: by _exit, or by killing its own group. Not measured are rank.py and spawn.py, which engines start
as files, and what a signal kills.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path

# it costs next to nothing where Python has it
os.environ.setdefault("COVERAGE_CORE", "sysmon" if sys.version_info >= (3, 12) else "ctrace")

import coverage

ROOT = Path(__file__).parents[1]
LOADER = "fleet.node.loader"
NOTES = "nodes"
ON_NODE = """
import os, posix, sys, threading
left = {}  # what has not run yet, by code object: where nothing is left, nothing is traced any more
def on_call(frame, event, arg):
    code = frame.f_code
    if not code.co_filename.startswith("fleet/"):
        return None
    if code not in left:
        left[code] = {line for _, _, line in code.co_lines() if line}
    lines = left[code]
    def on_line(frame, event, arg):
        lines.discard(frame.f_lineno)
        return on_line if lines else None
    return on_line(frame, event, arg)
def noted_before(leave):
    def note_and_leave(*how):
        sys.settrace(None)
        try:
            ran = [(code.co_filename, {line for _, _, line in code.co_lines() if line} - lines)
                   for code, lines in list(left.items())]
            text = "".join("\\n%s %s ." % (name, " ".join(map(str, lines))) for name, lines in ran)
            notes = os.open(NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.write(notes, text.encode())
            os.close(notes)
        finally:
            leave(*how)
    return note_and_leave
os._exit = posix._exit = noted_before(posix._exit)
end_others, end_all = os.killpg, noted_before(os.killpg)
os.killpg = lambda group, signum: (end_others if group else end_all)(group, signum)
threading.settrace(on_call)
sys.settrace(on_call)
"""


def measure_head(folder: str) -> coverage.Coverage:
    """Measures this process from now on, until stop() and save()."""
    head = coverage.Coverage(f"{folder}/data", True, config_file=False, source=[str(ROOT / "fleet")], messages=False)
    head.start()
    return head


def measure_nodes(folder: str) -> None:
    """What is sent to nodes from now on measures itself."""
    from fleet.transport import program  # not before the head is measured

    before = f"NOTES = {f'{folder}/{NOTES}'!r}\n{ON_NODE}".encode()
    text_of = program.text_of

    def measured(module: str) -> bytes | None:
        text = text_of(module)
        if module != LOADER or text is None:
            return text
        return before + f"exec(compile({text!r}, 'fleet/node/loader.py', 'exec'))\n".encode()

    program.text_of = measured  # type: ignore[assignment]


def report(folder: str) -> None:
    """Puts together what heads and nodes ran."""
    import fleet

    above, ran = Path(fleet.__file__).resolve().parents[1], defaultdict[str, set[int]](set)
    for note in Path(folder, NOTES).read_text().splitlines():
        name, *lines = note.split() or [""]
        if lines and lines.pop() == ".":  # of one that was killed there may be less
            ran[name].update(map(int, lines))
    nodes = coverage.CoverageData(f"{folder}/data.{NOTES}")
    nodes.add_lines({str(above / name): lines for name, lines in ran.items() if (above / name).exists()})
    nodes.write()
    both = coverage.Coverage(f"{folder}/data", config_file=False, messages=False)
    both.combine([folder])
    with Path(folder, "report").open("w") as file:
        total = both.report(file=file)
    print(f"coverage of fleet/ by unit, golden and node tests: {total:.0f}%")


if __name__ == "__main__":
    report(sys.argv[1])
