"""Runs `fleet exec -- ARGV...`."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import stat
import sys
import termios
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import click

from fleet.cli.context import finish, the_fleet
from fleet.cli.inventory import STDIN, read
from fleet.cli.line.command import Verb, completed, spelled
from fleet.cli.line.hints import quote
from fleet.cli.line.line import settings_of, the_line
from fleet.cli.line.options import common_options, request_options
from fleet.cli.line.slips import fleets_own, launch_line, with_options
from fleet.cli.line.values import no_fold_option
from fleet.cli.screen import terminal
from fleet.cli.screen.folded import write_folded
from fleet.cli.screen.lines import label, last_state, write_line
from fleet.cli.screen.output import advise, inform, without_colours, write_plan
from fleet.cli.screen.progress import ProgressLine
from fleet.engines.slips import LAUNCHERS
from fleet.errors import UsageError
from fleet.events import Event, Output
from fleet.model import Host, Result
from fleet.requests.hosts import Exec

OPERATOR = re.compile(r"\|\|?|&&?|;|\d?>>?|<|\d>&\d")
# programs whose own arguments may look like operators of a shell
WITH_SIGNS = ("find", "grep", "egrep", "rg", "awk", "sed", "tr", "cut", "expr", "test", "[")
BUILTINS = ("cd", "source", "export", "ulimit", "umask", "alias", "type")  # only a shell has them
GLOB = re.compile(r"(?=.*[*?])(?!.*\.[*?])[\w./~*?-]+")  # a pattern of a shell; most regular expressions do not match
SHORT = re.compile(r"^-\w")  # -w in -wgpu01
LINE_BYTES = 1 << 20  # a longer line is split
END_BYTES = 4096  # so much of the end of a host's output is kept, to show its last lines
SHARE = 3  # the last lines take one in so many rows of the terminal


class PrefixedLines(ProgressLine):
    """Prints complete lines as they arrive, each after its host's name."""

    def __init__(self) -> None:
        super().__init__()
        self._rest: dict[tuple[str, str], bytes] = {}

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, Output):
            key = (event.host, event.stream)
            *lines, rest = (self._rest.pop(key, b"") + event.data).split(b"\n")
            if len(rest) > LINE_BYTES:
                lines, rest = [*lines, rest], b""
            self._rest[key] = rest
            for line in lines:
                self._write(key, line)

    def flush(self) -> None:
        """Prints the last lines that ended without a newline."""
        for key, rest in self._rest.items():
            if rest:
                self._write(key, rest)

    @staticmethod
    def _write(key: tuple[str, str], line: bytes) -> None:
        with terminal.aside():
            write_line(f"{key[0]}: ", line, sys.stdout if key[1] == "stdout" else sys.stderr)


class LastLines(ProgressLine):
    """Draws the last output lines of the hosts at work below the progress line. All output is shown, folded, at the
    end."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[str, bytes] = {}  # host -> the end of its output; the host that wrote last comes last

    def feed(self, event: Event) -> None:
        super().feed(event)
        if isinstance(event, Output):
            with self._lock:
                self._ends[event.host] = (self._ends.pop(event.host, b"") + event.data)[-END_BYTES:]

    def lines(self, now: float) -> list[str]:
        room = max(1, terminal.size(sys.stderr)[1] // SHARE)
        with self._lock:
            ends = [(host, end) for host, end in self._ends.items() if host in self._at_work][-room:]
        last = {host: [line for line in map(last_state, end.split(b"\n")) if line] for host, end in ends}
        each = max(1, room // max(1, len(last)))
        return super().lines(now) + [
            label(host, None, tint, sys.stderr) + without_colours(line.decode("utf-8", "replace"))
            for tint, host in enumerate(self._hosts)
            for line in last.get(host, [])[-each:]
        ]


def line_for(no_fold: bool) -> ProgressLine:
    """Returns the progress line of a command. If outputs are not folded, the line also prints them as they arrive."""
    return PrefixedLines() if no_fold and not settings_of().json else LastLines()


def show_outputs(results: Sequence[Result], line: ProgressLine) -> None:
    """Prints the hosts' outputs, as far as the progress line has not shown them."""
    if isinstance(line, PrefixedLines):
        line.flush()
    else:
        write_folded(results, "stdout")
        write_folded(results, "stderr")


class ExecVerb(Verb):
    """Passes all tokens after the command's name to the command. If one of these tokens is also an option of fleet, and
    no "--" precedes the command, it raises UsageError: the user may have meant either."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        known = {flag for param in self.params for flag in (*param.opts, *param.secondary_opts)}
        ours = args[: args.index("--")] if "--" in args else args
        line = ours[ours.index("--shell") + 1 :] if "--shell" in ours else []
        if "-h" in line[1:] and " " not in line[0] and not ctx.resilient_parsing:
            raise UsageError(
                "--shell takes a line as one argument", hint=f"fleet exec --shell {shlex.quote(' '.join(line))}"
            )
        rest = super().parse_args(ctx, args)
        argv: tuple[str, ...] = ctx.params["argv"] or ()
        own = given[: len(given) - len(argv)]
        first = argv[1 : argv.index("--") if "--" in argv else None]  # after -- all belongs to the command
        option = next((arg for arg in first if known & {spelled(arg).partition("=")[0], *SHORT.findall(arg)}), None)
        if option and own[-1:] != ["--"] and not ctx.resilient_parsing:
            fleets, others = fleets_own(self, argv[1:])
            hint = shlex.join(["fleet", "exec", *own, "--", *argv])
            if "--shell" in fleets:
                hint = "--shell LINE takes the place of the command"
            elif fleets and not any(arg.startswith("-") for arg in others):
                hint = f"{shlex.join(['fleet', 'exec', *own, *fleets, '--', argv[0], *others])}; or {hint}"
            raise UsageError(f"{option} after {argv[0]}: without '--' it could be fleet's or the command's", hint=hint)
        return rest


@click.command(
    "exec",
    cls=ExecVerb,
    context_settings={"allow_interspersed_args": False},
    examples=(
        "fleet exec nvidia-smi -L",
        "fleet exec -- nvidia-smi -q -i 0",
        "fleet exec --shell 'df -h ~ | tail -1'",
        "fleet exec -- bash < setup.sh",
    ),
)
@request_options(Exec, "shell", "timeout", "env_of", "outdir")
@no_fold_option()
@click.option(
    "--stdin/--no-stdin",
    " /-n",
    default=None,
    help="Send standard input to the command on every host, or leave it alone.",
)
@click.argument("argv", nargs=-1, metavar="[-- ARGV...]", type=click.UNPROCESSED, shell_complete=completed("file"))
@common_options
def exec_(no_fold: bool, stdin: bool | None, argv: tuple[str, ...], **options: Any) -> int:
    """Run exactly ARGV on every host, no shell in between; or a line in the node's shell.

    Identical outputs are shown once, under the node set they came from; differing ones show the difference, also
    with -q. Exit: the largest remote status.

    A pipe or a file that is the standard input of fleet alone is sent to the command on every host. All hosts then run
    at once, at the pace of the slowest reader. Input that fleet shares with its caller, as in a loop over a file of
    hosts, is sent with --stdin only, and a terminal never. If a file is still unread, it is not clear whose input it
    is: then --stdin or -n is required.
    """
    if options["shell"] is not None and argv:
        whole = f"fleet exec --shell {shlex.quote(' '.join([options['shell'], *argv]))}"
        raise UsageError("--shell takes a line as one argument", hint=with_options(whole, click.get_current_context()))
    settings = settings_of()
    keep = settings.json or not no_fold
    Exec(argv, **options)  # checks the options before standard input is used
    fleet = the_fleet()
    given, waits = (None, False) if settings.dry_run else own_input(stdin)
    plan = fleet.plan.exec(argv, keep=keep, stdin=given, **options)
    if settings.dry_run:
        return write_plan(plan)
    launch = launch_line(argv) or "" if len(plan.hosts) > 1 else ""
    options_of_launch = re.split(r" (?:-m |\S+\.py\b)", launch, maxsplit=1)[0]  # later options are the script's
    if alike := re.search(r" (-i|-w|--nnodes (?!1 ))", f"{options_of_launch} "):
        inform(f"warning: each host starts {argv[0]} as it is typed, with the same node rank", hint=launch)
    with line_for(no_fold) as progress:
        report = plan.run(progress)
    report = replace(report, data={**report.data, "stdin": "not sent"}) if waits else report
    code = finish(report, lambda it: show_outputs(it.results, progress), requested=True)
    well = sum(result.ok for result in report.results)
    if not settings.json and well < len(report.results) > 1:
        inform(f"{well} of {len(report.results)} hosts ok")
    statuses = {result.exit_status for result in report.results}
    if (
        argv
        and not (settings.json or alike)
        and (meant := other_command(argv, options["env_of"], statuses, {host.name: host for host in plan.hosts}))
    ):
        advise(meant)
    return code


def other_command(
    argv: Sequence[str], env_of: str | None, statuses: Collection[int | None], hosts: Mapping[str, Host]
) -> str | None:
    """Returns a hint with the command that was probably meant, for an argv that ended with these statuses; None without
    a guess. hosts: name -> host."""
    fleet = f"fleet exec --env-of {env_of}" if env_of else "fleet exec"
    if 127 in statuses:  # a host has no such program
        if len(argv) == 1 and len(argv[0].split()) > 1:
            return whole_line(argv[0], fleet)
        if argv[0] in hosts and len(argv) > 1:
            return f"fleet exec -w {argv[0]} -- {shlex.join(argv[1:])}"
        if argv[0] in BUILTINS:
            return f"only a shell has {argv[0]}: {fleet} --shell {shlex.quote(shlex.join(argv))}"
        trained = argv[0] in LAUNCHERS or any(host.python or host.activate for host in hosts.values())
        if env_of is None and "/" not in argv[0] and argv[0] != "nvidia-smi" and trained:
            own = " ".join(quote(arg) for arg in argv)
            return f"'fleet exec --env-of python -- {own}' also looks next to the training interpreter"
    operator = next((arg for arg in argv[1:-1] if OPERATOR.fullmatch(arg) and argv[0] not in WITH_SIGNS), None)
    if operator or statuses != {0} and any(GLOB.fullmatch(arg) for arg in argv[1:]):
        line = " ".join(arg if OPERATOR.fullmatch(arg) or GLOB.fullmatch(arg) else shlex.quote(arg) for arg in argv)
        return f"no shell reads {operator or 'the words'}: {fleet} --shell {shlex.quote(line)}"
    return None


def own_input(requested: bool | None) -> tuple[BinaryIO | None, bool]:
    """Returns (standard input if it is to be sent, whether there is input that is not sent). Without an option, input
    that only fleet has is sent. Input that fleet shares with its caller (a script, a loop over a file of hosts) belongs
    to the caller. Raises UsageError if such shared input is a file of which nothing was read: it is not known whether
    it is for the command. requested: True for --stdin, False for -n, None for neither."""
    if requested and terminal.interactive(sys.stdin):
        raise UsageError("--stdin: standard input is a terminal, which is not read", hint="give it a file: < FILE")
    ours, waits = os.fstat(0), False
    if STDIN in read:
        if requested:
            raise UsageError("--stdin: standard input is what -w - reads", hint="-w ^FILE takes names from a file")
        return None, False
    if requested is None and not stat.S_ISCHR(ours.st_mode) and the_line().by_itself:
        inventory = _is(ours, settings_of().inventory or "", otherwise=False)  # -i /dev/stdin
        shared = not inventory and (
            (parent := os.getppid()) == 1
            and os.getsid(0) != os.getsid(1)
            or _is(ours, f"/proc/{parent}/fd/0", otherwise=True)
        )
        requested = not (shared or inventory)
        waits = shared and any(fcntl.ioctl(0, termios.FIONREAD, bytes(4)))
        if waits and stat.S_ISREG(ours.st_mode) and not os.lseek(0, 0, os.SEEK_CUR):
            raise UsageError(
                "standard input is a file of which nothing is read yet, and it may be for what called fleet",
                hint="--stdin sends it, -n leaves it",
            )
        if waits:
            advise("what waits on standard input is not sent, as fleet's caller has it, too: --stdin, or -n")
    if requested:
        os.set_blocking(0, True)
    return open(0, "rb", 0, closefd=False) if requested else None, waits


def _is(ours: os.stat_result, path: str, *, otherwise: bool) -> bool:
    """Returns whether the path is the file whose status is `ours`; returns `otherwise` if that cannot be known."""
    try:
        return os.path.samestat(ours, os.stat(path))
    except OSError:
        return otherwise


def whole_line(token: str, fleet: str) -> str:
    """Returns the hint for a whole line that was given as one argument. fleet: the beginning of the command."""
    shell = f"{fleet} --shell {shlex.quote(token)}"
    return f"a shell takes a line: {shell}" if re.search(r"[|&;<>$`*?~(]", token) else f"{fleet} -- {token}; or {shell}"
