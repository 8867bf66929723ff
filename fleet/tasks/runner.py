"""Runs a task's commands. On a host, commands run like those of `fleet exec`, and leave nothing on the host. A command
that may get input (a watcher, a terminal) runs over a channel of its own."""

from __future__ import annotations

import codecs
import os
import uuid
from collections.abc import Callable
from shlex import quote
from typing import Any, Literal

from fabric.runners import Remote
from invoke.exceptions import CommandTimedOut, UnexpectedExit
from invoke.runners import Local, Runner

from fleet.background import unattended
from fleet.errors import Interrupted, UsageError
from fleet.inventory.fields import ENV_NAME
from fleet.ops.execute import END_SECONDS
from fleet.runtime import Runtime
from fleet.tasks.ground import Printed, current_sink, task_state
from fleet.transport.command import Command, CommandSpec, one_line, quoted
from fleet.transport.local import end
from fleet.transport.program import SILENCE_SECONDS

GRACE_SECONDS = 2.0
NEED_A_CHANNEL = ("pty", "watchers", "in_stream", "asynchronous", "disown", "dry")
STREAMS: tuple[Literal["out"], Literal["err"]] = ("out", "err")


def _nul_in(text: str, what: str) -> None:
    """Raises UsageError if the text has a NUL character, which a shell would drop without a message."""
    if "\0" in text:
        raise UsageError(f"{what} holds a NUL character", hint="c.put brings bytes to a host")


class _Shown(Runner):
    """Writes output to the sink of the host that it belongs to, whatever thread receives it."""

    read_chunk_size = 1 << 16

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sink = getattr(self.context, "sink", None) or current_sink()
        self._undo: Callable[[], object] = lambda: None

    def write_our_output(self, stream: Any, string: str) -> None:
        if self.sink is not None and isinstance(stream, Printed):
            self.sink.write(stream.name, string)
        else:
            super().write_our_output(stream, string)

    def respond(self, buffer_: list[str]) -> None:
        if self.watchers:  # without this test, invoke would join the whole output again at every piece
            super().respond(buffer_)

    def ended_by_cancel(self, runtime: Runtime, end: Callable[[], object]) -> None:
        self._undo = runtime.cancel.on_set(lambda: unattended("end", end))

    def stop(self) -> None:
        super().stop()
        self._undo()

    @property
    def typed_into(self) -> bool:
        """Returns whether the command may still get input."""
        return bool(self.streams["in"] or self.watchers or self.using_pty)


class LocalRunner(_Shown, Local):
    """Runs c.local, and c.run of a task without a host."""

    def start(self, command: str, shell: str, env: dict[str, Any]) -> None:
        super().start(command, shell, env)
        runtime = task_state().runtime
        if runtime is not None and not self.using_pty:
            self.ended_by_cancel(runtime, self._end)
            task_state().opened.append(lambda: self._leave(runtime))
        if not self.typed_into:
            self.close_proc_stdin()

    def _end(self) -> None:
        # SIGTERM may have no effect: a shell drops it just before it executes another program
        end(self.process, 0.0, GRACE_SECONDS)

    def _leave(self, runtime: Runtime) -> None:
        """Kills the process when fleet ends after a Ctrl-C: the thread that runs _end() ends with fleet."""
        if runtime.cancel.is_set():
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        super().stop()
        if process := getattr(self, "process", None):
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close()


class RemoteRunner(_Shown, Remote):  # type: ignore[misc]
    """Runs c.run and c.sudo."""

    def _run_body(self, command: str, **kwargs: Any) -> Any:
        options = {**self.context.config.run, **{key: value for key, value in kwargs.items() if value is not None}}
        # if no password is known, sudo would get the text None
        options["watchers"] = [
            watcher for watcher in options["watchers"] if getattr(watcher, "response", "") != "None\n"
        ]
        if self.context.forward_agent or any(options[key] for key in NEED_A_CHANNEL):
            return super()._run_body(command, **kwargs)
        self._setup(command, {**kwargs, "watchers": None})
        return self._run(command)

    def _run(self, command: str) -> Any:
        runtime, host = task_state().running(), self.context.known
        timeout = self.opts["timeout"]
        outputs: tuple[list[str], list[str]] = ([], [])
        decoders = [codecs.getincrementaldecoder(self.encoding)("replace") for _ in STREAMS]
        with Command(self.context.session, self._spec(command), f"exec-{uuid.uuid4().hex}", GRACE_SECONDS) as running:
            self.ended_by_cancel(runtime, running.end)
            try:
                for number, data in running.output(
                    silence=SILENCE_SECONDS, timeout=timeout, patience=GRACE_SECONDS + END_SECONDS
                ):
                    self._take(number, decoders[number].decode(data), outputs)
            finally:
                self._undo()
        for number, decoder in enumerate(decoders):
            self._take(number, decoder.decode(b"", True), outputs)
        if running.left is not None and runtime.cancel.is_set():
            raise Interrupted("interrupted; ended there", host=host.name)
        result = self.generate_result(
            **self.result_kwargs, stdout="".join(outputs[0]), stderr="".join(outputs[1]), exited=running.status
        )
        if running.left is not None:
            raise CommandTimedOut(result, timeout=timeout)
        if not (result or self.opts["warn"]):
            raise UnexpectedExit(result)
        return result

    def _take(self, number: int, text: str, outputs: tuple[list[str], list[str]]) -> None:
        outputs[number].append(text)
        if text and f"std{STREAMS[number]}" not in self.opts["hide"]:
            self.write_our_output(self.streams[STREAMS[number]], text)

    def _spec(self, command: str) -> CommandSpec:
        _nul_in(command, "a task's command")
        return CommandSpec(None, command, self._variables(self.env), self.context.known.activate)

    def _variables(self, given: dict[str, Any]) -> dict[str, str]:
        for name in given:
            if not ENV_NAME.fullmatch(name):
                raise UsageError(f"env of a task: {name!r} is not a variable's name", hint="letters, digits and _")
            _nul_in(str(given[name]), f"env of a task: {name}")
        known = task_state().inventory.env_for(self.context.known)
        return {**known, **{name: str(value) for name, value in given.items()}}

    # -- over a channel of its own -------------------------------------------------------------------------
    def start(self, command: str, shell: str, env: dict[str, Any], timeout: float | None = None) -> None:
        line = f'exec "${{SHELL:-/bin/sh}}" -c {quote(command)}'
        if activate := self.context.known.activate:
            line = "exec bash -c " + quote(f"{activate}\n{line}")
        given = " ".join(f"{name}={quoted(value)}" for name, value in self._variables(env).items())
        if given and self.using_pty:  # a terminal would echo what is sent
            line = f"{one_line(f'export {given}')}; {line}"
        elif given:  # sent on stdin: other users can read command lines
            line = f'IFS= read -r fleet_given; eval "$fleet_given"; {line}'
        super().start(f"exec sh -c {quote(line)}", shell, {})
        if given and not self.using_pty:
            self.channel.sendall(os.fsencode(one_line(f"export {given}") + "\n"))
        self.ended_by_cancel(task_state().running(), self.channel.close)
        if not self.typed_into:
            self.close_proc_stdin()

    def wait(self) -> None:
        while not (self.process_is_finished or self.has_dead_threads):
            self.channel.status_event.wait(0.2)

    def returncode(self) -> Any:
        if task_state().running().cancel.is_set():
            raise Interrupted("interrupted", host=self.context.known.name)
        return super().returncode()
