"""The node half runs on the oldest Python that fleet promises to work with there, with what is sent and no more."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fleet
from fleet.transport import program
from fleet.transport.frames import Decoder
from fleet.transport.program import BOOT, closure, imports, pack, shipped
from tests.changed import programs

PACKAGE = Path(fleet.__file__).parent
NODE = [*sorted((PACKAGE / "node").rglob("*.py")), PACKAGE / "version.py"]
OLDEST = min(
    (path for path in Path("/usr/bin").glob("python3*") if re.fullmatch(r"python3\.\d+", path.name)),
    key=lambda path: int(path.name[8:]),
    default=Path(sys.executable),
)

# in the standard library since 3.7 or later, by the ways they are commonly reached
TOO_NEW_MODULES = {"dataclasses", "contextvars", "graphlib", "zoneinfo", "tomllib", "importlib.resources"}
TOO_NEW_KEYWORDS = {"capture_output", "text", "dirs_exist_ok", "missing_ok"}
TOO_NEW_ATTRIBUTES = {
    "removeprefix",
    "removesuffix",
    "time_ns",
    "monotonic_ns",
    "pidfd_open",
    "pidfd_send_signal",
    "cached_property",
    "get_running_loop",
    "nullcontext",
    "fromisoformat",
    "reconfigure",
    "posix_spawn",
    "memfd_create",
    "copy_file_range",
    "unparse",
    "is_relative_to",
    "shlex.join",
    "asyncio.run",
    "math.dist",
    "math.comb",
    "threading.get_native_id",
    "threading.excepthook",
    "waitstatus_to_exitcode",
}


def too_new(source: str) -> list[str]:
    """ "LINE: WHAT" for syntax and well-known names that Python 3.6 does not have."""
    try:
        tree = ast.parse(source, feature_version=(3, 6))
    except SyntaxError as error:
        return [f"{error.lineno}: {error.msg}"]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr):
            found.append(f"{node.lineno}: walrus")
        elif isinstance(node, ast.Import):
            found += [f"{node.lineno}: {a.name}" for a in node.names if a.name in TOO_NEW_MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            found += [
                f"{node.lineno}: {name}"
                for name in names
                if name in TOO_NEW_MODULES or name == "__future__.annotations"
            ]
        elif isinstance(node, ast.Call):
            found += [f"{node.lineno}: {k.arg}=" for k in node.keywords if k.arg in TOO_NEW_KEYWORDS]
        elif isinstance(node, ast.Attribute):
            owner = f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""
            if node.attr in TOO_NEW_ATTRIBUTES or owner in TOO_NEW_ATTRIBUTES:
                found.append(f"{node.lineno}: {node.attr}")
        elif isinstance(node, ast.FunctionDef) and node.args.posonlyargs:
            found.append(f"{node.lineno}: positional-only")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "if (n := 1): pass",
        "def f(a, /): pass",
        "import dataclasses",
        "from __future__ import annotations",
        "subprocess.run([], capture_output=True)",
        "'a'.removeprefix('b')",
        "shlex.join([])",
        "async def f():\n  return [x async for x in y]\nmatch = 1\nmatch x:\n  case 1: pass",
    ],
)
def test_the_checker_finds_what_is_too_new(text: str) -> None:
    assert too_new(text)


def test_there_is_something_to_check() -> None:
    assert {"wire.py", "supervise.py"} <= {path.name for path in NODE}
    assert {"run.supervise", "delivery.code_sync"} <= set(programs()) and len(programs()) > 10


@pytest.mark.parametrize("path", NODE, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_node_half_is_python_3_6(path: Path) -> None:
    text = path.read_text("utf-8")
    assert too_new(text) == []
    # the syntax tree keeps no trace of f"{x=}"
    assert not any("=}" in line and ("f'" in line or 'f"' in line) for line in text.splitlines())


def imported(text: bytes) -> set[str]:
    """The modules that are imported for more than their types' names, as the syntax tree has it."""
    found = set()
    todo: list[ast.AST] = [ast.parse(text)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "no relative imports"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inside if (PACKAGE.parent / f"{name.replace('.', '/')}.py").exists()}
            found |= modules or {node.module}
    return found


@pytest.mark.parametrize("path", NODE, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_is_sent_with_exactly_what_it_imports(path: Path) -> None:
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    wanted = imported(path.read_bytes())
    ours = {name for name in wanted if name.partition(".")[0] == "fleet"}
    assert set(imports(module)) == ours
    assert all(name.startswith(("fleet.node.", "fleet.protocol.")) for name in ours - {"fleet.version"})
    library = {*sys.stdlib_module_names, "_sha256", "_sha2"}  # the last two: each in some Pythons
    assert {name.partition(".")[0] for name in wanted - ours} <= library


def start(sent: bytes, python: Path | str = sys.executable, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([python, "-I", "-S", "-c", BOOT], input=sent, capture_output=True, timeout=300, **options)


@pytest.mark.parametrize("name", programs())
def test_a_program_can_be_imported_from_what_is_sent(name: str) -> None:
    module = f"fleet.node.{name}"
    texts = closure(module)
    # a module that is imported by a function is imported here, too
    all_of_it = [name for name in sorted(texts) if texts[name]]
    first = (
        f"import {module}\ndef main():\n    [__import__(name) for name in {all_of_it}]\n    print('fine', flush=True)\n"
    )
    done = start(pack("first", {**texts, "first": first.encode()}), OLDEST)
    assert (done.returncode, done.stdout) == (0, b"fine\n"), done.stderr.decode()
    assert shipped(name) == shipped.__wrapped__(name), "always the same bytes"


@pytest.mark.skipif("FLEET_COVERAGE" in os.environ, reason="what measures imports more")
@pytest.mark.parametrize("name", ["run.list_runs", "run.follow"])
def test_what_asks_all_nodes_imports_little(name: str) -> None:
    """What `ps` and `logs` run on every node: these take longer to import than all that it does."""
    module = f"fleet.node.{name}"
    first = f"import {module}\ndef main():\n    import sys\n    print(*sys.modules, flush=True)\n"
    done = start(pack("first", {**closure(module), "first": first.encode()}), "/usr/bin/python3")
    assert done.returncode == 0, done.stderr.decode()
    loaded = set(done.stdout.decode().split())
    assert module in loaded
    assert not loaded & {"re", "json", "enum", "signal", "threading", "hashlib", "subprocess", "typing"}


IN_A_ROW = """
from fleet.node.base.wire import send_exit, send_json, start
def main():
    send_json({"told": start()})
    send_exit(0)
"""


def test_programs_in_a_row_begin_each_with_its_own_spec() -> None:
    """In one process, which says what it is but once."""
    texts = {**closure("fleet.node.base.wire"), "first": IN_A_ROW.encode(), "second": IN_A_ROW.encode()}
    sent = pack("first second", texts)
    for specs, told in ((b"1\n2\n", [1, 2]), (b"1\n", [1])):  # who is not asked for the second ends it so
        done = start(sent + specs)
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
        frames = list(Decoder("n").feed(done.stdout))
        assert [frame.json() for frame in frames if frame.kind == b"J"] == [{"told": n} for n in told], frames
        assert [frame.kind for frame in frames] == [b"J", b"X"] * len(told), frames


def test_a_program_is_packed_once_for_all_hosts() -> None:
    """Their threads ask for it at the same time."""
    many, packed = 8, list[object]()
    together = threading.Barrier(many)

    def pack_it() -> None:
        together.wait(60)
        packed.append(program.packed("run.ready run.stop run.ready", None))

    threads = [threading.Thread(target=pack_it) for _ in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(packed) == many and all(each is packed[0] for each in packed)


def test_an_installed_fleet_is_never_picked_up(tmp_path: Path) -> None:
    """Nor is anything of it that was not sent."""
    for package in ("fleet", "fleet/node", "fleet/node/run"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('this one is installed')")
    (tmp_path / "fleet/other.py").write_text("")
    first = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import fleet.node.run.stop
def main():
    try:
        import fleet.other
    except ImportError as error:
        print(error, flush=True)
"""
    done = start(pack("first", {**closure("fleet.node.run.stop"), "first": first.encode()}), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"fleet.other was not sent\n"), done.stderr.decode()


def test_a_traceback_names_file_and_line() -> None:
    done = start(shipped("run.stop") + b'{"mark": "m"}\n')
    lines = (PACKAGE / "node/run/stop.py").read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if 'spec["run"]' in line)
    said = done.stderr.decode()
    assert done.returncode == 1 and f'File "fleet/node/run/stop.py", line {number}, in stop' in said
    assert lines[number - 1].strip() in said and said.endswith("KeyError: 'run'\n")


def test_what_is_no_module_cannot_be_sent() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"fleet\.node\.run\.nosuch"):
        shipped("run.nosuch")
