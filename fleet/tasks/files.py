"""Reads a task file, as `fleet play tasks.py[:NAME] [ARGS]` names it, and makes the calls that its arguments
request."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import fabric
from invoke.collection import Collection
from invoke.exceptions import ParseError
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser
from invoke.tasks import Call, Task

from fleet.errors import FleetError, InventoryError, UsageError
from fleet.model import Host, Inventory
from fleet.tasks import connection as connection  # replaces fabric's classes before any task file is read
from fleet.tasks.ground import task_state
from fleet.tasks.runner import LocalRunner

Where = Literal["each", "group", "here"]
_GROUPS = ("Group", "ThreadingGroup", "SerialGroup")


@dataclass(frozen=True)
class Step:
    """Holds one call of a task. where: "each": on each host, with its Connection; "group": once, with a Group of all;
    "here": once, on this machine. connections: the arguments of each Connection."""

    call: Any
    name: str
    where: Where
    connections: tuple[dict[str, Any], ...] = ()

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Returns the hosts of `connections`."""
        return tuple(_host(each) for each in self.connections)

    @property
    def as_typed(self) -> str:
        """Returns the call as Python source."""
        arguments = [*map(repr, self.call.args), *(f"{name}={value!r}" for name, value in self.call.kwargs.items())]
        return f"{self.name}({', '.join(arguments)})"


class TaskFile:
    """Holds a task file. Its module is executed once in a process, however often the file is read."""

    def __init__(self, path: Path, sudo_password: str | None = None) -> None:
        self.path = path
        self.module = _loaded(path)
        sudo = {"sudo": {"password": sudo_password}} if sudo_password else {}
        self.config = fabric.Config(
            overrides={"runners": {"local": LocalRunner}, **sudo},
            ssh_config=fabric.connection.SSHConfig(),
            lazy=True,
        )
        self.config.load_base_conf_files()
        self.config.set_project_location(str(path.parent))
        self.config.load_project()
        self.config.merge()
        self.tasks = Collection.from_module(
            self.module, loaded_from=str(path.parent), auto_dash_names=self.config.tasks.auto_dash_names
        )

    @cached_property
    def about(self) -> dict[str, str]:
        """Returns the name of each task -> the first line of its docstring."""
        return {
            name: (inspect.getdoc(self.tasks[name]) or "").partition("\n")[0] for name in sorted(self.tasks.task_names)
        }

    def help(self, name: str) -> tuple[list[str], list[tuple[str, str]]]:
        """Returns a task's docstring, and (flags, help) of each of its options. Raises UsageError if there is no such
        task."""
        for context in self.tasks.to_contexts():
            if name in (context.name, *context.aliases):
                options = [(flags, text or "") for flags, text in context.help_tuples()]
                return (inspect.getdoc(self.tasks[name]) or "").splitlines(), options
        raise UsageError(f"{self.path}: there is no task '{name}'", hint=self._hint([]))

    def steps(self, tokens: Sequence[str], inventory: Inventory | None, *, chosen: bool) -> list[Step]:
        """Returns the steps that the arguments request, in their order. inventory: the hosts for tasks that name none,
        or None if there is no inventory. chosen: whether the user chose these hosts, which then replace the hosts that
        a task names."""
        parser = Parser(initial=ParserContext(), contexts=self.tasks.to_contexts())
        try:
            found = parser.parse_argv(list(tokens))[1:]
        except ParseError as error:
            raise UsageError(f"{self.path}: {error}", hint=self._hint(tokens)) from error
        if not found and self.tasks.default is None:
            raise UsageError(f"{self.path}: which of its tasks?", hint=self._hint(tokens))
        calls = [Call(self.tasks[c.name], kwargs=c.as_kwargs, called_as=c.name) for c in found] or [
            Call(self.tasks[self.tasks.default], called_as=self.tasks.default)
        ]
        return list(self._expanded(calls, inventory, chosen, requested=True))

    def _hint(self, argv: Sequence[str]) -> str:
        if argv and argv[0] in ("-H", "--hosts"):
            return "hosts come from the inventory: fleet -w HOSTS play ..."
        return f"its tasks: {', '.join(self.about)}" if self.about else "a task is a function below @task"

    def _expanded(
        self, calls: Sequence[Any], inventory: Inventory | None, chosen: bool, requested: bool
    ) -> Iterator[Step]:
        """Yields the steps of these calls. As in fabric, a task's `pre` and `post` tasks run once, on the head, unless
        they name hosts. requested: whether the user requested these calls."""
        for call in calls:
            call = Call(call) if isinstance(call, Task) else call
            yield from self._expanded(call.pre, inventory, chosen, False)
            yield self._step(call, inventory, chosen, requested)
            yield from self._expanded(call.post, inventory, chosen, False)

    def _step(self, call: Any, inventory: Inventory | None, chosen: bool, requested: bool) -> Step:
        name = call.called_as or call.task.name
        own = [each if isinstance(each, dict) else {"host": each} for each in getattr(call.task, "hosts", None) or ()]
        where = _where(call.task)
        if where == "here" or not (requested or own):
            return Step(call, name, "here")
        if own and not (requested and chosen):
            return Step(call, name, where, tuple(own))
        if inventory is None:
            raise InventoryError(
                f"task '{name}' runs on hosts, and there is no inventory",
                hint="-i FILE, or ./fleet.yaml; @task(hosts=...)",
            )
        return Step(call, name, where, tuple({"host": host.name} for host in inventory.hosts))


def _where(task: Any) -> Where:
    """Returns where a task runs, by the annotation of its first parameter: "group" for a Group, "here" for invoke's
    Context, "each" for any other."""
    first = next(iter(inspect.signature(task.body).parameters.values()), None)
    annotation = getattr(first and first.annotation, "__name__", None) or str(first and first.annotation)
    annotation = annotation.rpartition(".")[2].strip("'\"")
    return "group" if annotation in _GROUPS else "here" if annotation == "Context" else "each"


def _host(made: dict[str, Any]) -> Host:
    """Returns the host of a Connection's arguments."""
    derived = fabric.connection.derive_shorthand(made["host"])
    return task_state().host(
        derived["host"], user=made.get("user") or derived["user"], port=made.get("port") or derived["port"]
    )


_modules: dict[Path, Any] = {}


def _loaded(path: Path) -> Any:
    file = path / "__init__.py" if path.is_dir() else path
    file = file.resolve()
    if file not in _modules:
        name = path.stem if path.stem not in sys.modules else f"tasks_of_{path.stem}"
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            text = error.message if isinstance(error, FleetError) else f"{type(error).__name__}: {error}"
            raise InventoryError(f"cannot be read: {text}", where=where_of(error, file), hint=_why(error)) from error
        _modules[file] = module
    return _modules[file]


def _why(error: BaseException) -> str | None:
    if isinstance(error, FleetError):
        return error.hint
    if isinstance(error, ImportError) and str(error.name).startswith("fabric."):
        return "written for fabric 1? there 'run' is a function; since fabric 2 a task is given a connection: c.run"
    if isinstance(error, ModuleNotFoundError):
        return f"install it where fleet is: {sys.executable} -m pip install {error.name}"  # noqa: TID251
    return None


def where_of(error: BaseException, file: Path) -> str:
    """Returns FILE:LINE of an error: the innermost line in the folder of `file`, or else the innermost line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == file.parent] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else str(file)
