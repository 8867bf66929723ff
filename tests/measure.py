"""How much of fleet/ the tests run, on the head and on nodes: `make coverage`, which names a folder in FLEET_COVERAGE.

A node program is started by the system's python with nothing but the text that it is sent (-I -S). What measures it is
sent before that text, and saves what was measured when the program ends: by _exit, or by killing its own group. Not
measured are rank.py and spawn.py, which engines start as files, and what a signal kills.
"""

from __future__ import annotations

from pathlib import Path

import coverage

ROOT = Path(__file__).parents[1]
LOADER = "fleet.node.loader"
ON_NODE = """
import builtins, os, posix, sys
sys.path.insert(0, {site!r})
import coverage
sys.path.pop(0)
measured = coverage.Coverage({data!r}, True, config_file=False, include=[{root!r} + "/fleet/*"], messages=False)
measured.start()
def saved_before(leave):
    def save_and_leave(*how):
        try:
            measured.stop()
            measured.save()
        finally:
            leave(*how)
    return save_and_leave
os._exit = posix._exit = saved_before(posix._exit)
end_others, end_all = os.killpg, saved_before(os.killpg)
os.killpg = lambda group, signum: (end_others if group else end_all)(group, signum)
def compile(text, name, *rest):
    return builtins.compile(text, {root!r} + "/" + name if text else "<package>", *rest)
"""


def measure_head(folder: str) -> coverage.Coverage:
    """Measures this process from now on, until stop() and save()."""
    head = coverage.Coverage(f"{folder}/data", True, config_file=False, source=[str(ROOT / "fleet")], messages=False)
    head.start()
    return head


def measure_nodes(folder: str) -> None:
    """What is sent to nodes from now on measures itself."""
    from fleet.transport import program  # not before the head is measured

    site = str(Path(coverage.__file__).parents[1])
    before = ON_NODE.format(site=site, data=f"{folder}/data", root=str(ROOT)).encode()
    text_of = program.text_of

    def measured(module: str) -> bytes | None:
        text = text_of(module)
        if module != LOADER or text is None:
            return text
        return before + f"exec(compile({text!r}, 'fleet/node/loader.py', 'exec'))\n".encode()

    program.text_of = measured  # type: ignore[assignment]
