"""Events come from any thread, and click keeps its context for the main one: no handler of events may need it.

The handlers are found in the source by what they take, an `Event`: a new one that is not tried here is missed.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fleet.cli
from fleet import events
from fleet.cli.line.line import Line, Settings, running
from fleet.events import Emit, Event
from fleet.model import Host, Inventory, Result
from tests.events import happened
from tests.scripted import Scripted


def of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"fleet.cli.{module}"), name)


def line() -> Any:
    return of("screen.progress", "ProgressLine")("sending")


def view() -> Emit:
    """The launch's view, its printing done in the calling thread."""
    made = of("run.launch_view", "LaunchView")(["gpu01"], level=1)

    def emit(event: Event) -> None:
        made(event)
        made._show(made._queue.pop())

    return emit


def unread_by() -> Emit:
    runtime = SimpleNamespace(emit=of("screen.board", "Shown")(bare=False))
    of("context", "unread")(runtime).__enter__()
    emit: Emit = runtime.emit
    return emit


def telling() -> Emit:
    inventory = Inventory((Host("gpu01", "10.0.0.1"),))
    with running(Line(settings=Settings(verbose=1))):
        told: Emit = of("screen.progress", "detailed")(line(), inventory, Scripted({}))
    return told


# "MODULE.NAME" of each handler -> what makes one
HANDLERS: dict[str, Callable[[], Emit]] = {
    "progress.ProgressLine.__call__": line,
    "progress.ProgressLine.feed": lambda: line().feed,
    "data.DataLine": lambda: of("files.data", "DataLine")(),
    "build.BuildOutput.__call__": lambda: of("files.build", "BuildOutput")(),
    "exec.PrefixedLines.__call__": lambda: of("verbs.exec", "PrefixedLines")(),
    "exec.LastLines": lambda: of("verbs.exec", "LastLines")(),
    "exec.LastLines.feed": lambda: of("verbs.exec", "LastLines")().feed,
    "board.Shown.__call__": lambda: of("screen.board", "Shown")(bare=False),
    "lines.show_bare": lambda: of("screen.lines", "show_bare"),
    "top.Board.notice": lambda: of("run.top", "Board")(["gpu01"], "host", 2.0, False).notice,
    "context.unread.emit": unread_by,
    "setup_ssh.Remarks.__call__": lambda: of("verbs.setup_ssh", "Remarks")(),
    "launch_view.LaunchView.__call__": view,
    "progress.detailed.report": telling,
}


def takes_event(function: ast.FunctionDef) -> bool:
    """Public functions with an `Event` among what they take; private ones serve a handler that is public."""
    inner = function.name == "__call__" or not function.name.startswith("_")
    words = [ast.unparse(a.annotation) for a in function.args.args if a.annotation is not None]
    return inner and any(word in ("Event", "events.Event") for word in words)


def found_in(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            inner = f"{name}.{node.name}"
            if isinstance(node, ast.FunctionDef) and takes_event(node):
                yield inner
            yield from found_in(node, inner)


def test_every_handler_is_known_here() -> None:
    folder = Path(fleet.cli.__file__).parent
    files = sorted(folder.rglob("*.py"))
    found = {name for file in files for name in found_in(ast.parse(file.read_text("utf-8")), file.stem)}
    for file in files:  # and what inherits a handler
        dotted = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(f"fleet.cli.{dotted}".removesuffix(".__init__"))
        found |= {
            f"{file.stem}.{kind.__name__}"
            for kind in vars(module).values()
            if isinstance(kind, type)
            and kind.__module__ == module.__name__
            and issubclass(kind, type(line()))
            and "__call__" not in vars(kind)
        }
    assert found == set(HANDLERS)


def every_event() -> Iterator[Event]:
    """One of each kind there is, every field filled."""
    values = {
        "host": "gpu01",
        "what": "asking",
        "stream": "stderr",
        "data": b"a line\n",
        "rank": 0,
        "done": 1.0,
        "total": 2.0,
        "result": Result("gpu01", ok=True),
        "message": "a remark",
        "hint": "a hint",
        "hosts": ("gpu01", "gpu02"),
        "unit": "count",
        "happened": (happened("rank"),),
    }
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
    for kind in kinds:
        names = [field.name for field in dataclasses.fields(kind) if field.name not in ("time", "level")]
        filled = {name: values[name] for name in names}
        for level in ("info", "warning", "error") if kind is events.Notice else ("",):
            yield kind(**filled, **({"level": level} if level else {}))


@pytest.mark.parametrize("name", HANDLERS)
def test_every_event_from_a_thread(name: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    raised: list[BaseException] = []

    def emit_all() -> None:
        try:
            emit = HANDLERS[name]()
            for event in every_event():
                emit(event)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=emit_all)
    thread.start()
    thread.join()
    assert raised == []


def test_no_kind_of_event_is_left_out() -> None:
    assert {type(event).__name__ for event in every_event()} >= {
        "Event",
        "Round",
        "Started",
        "Output",
        "Progress",
        "Finished",
        "Notice",
    }
