"""`fleet build deepspeed`, `fleet build PATH`"""

from __future__ import annotations

from pathlib import Path

import click

from fleet.answers.sync import Built
from fleet.cli.context import perform
from fleet.cli.files.data import show_wheels
from fleet.cli.line.command import Verb, completed
from fleet.cli.line.options import Limited, pairs, settings_of, without
from fleet.cli.screen.lines import Lines
from fleet.cli.screen.output import clean, echo, talk
from fleet.cli.screen.progress import ProgressLine
from fleet.events import Event, Output
from fleet.model import Report
from fleet.requests.hosts import Build


class BuildTalk(ProgressLine):
    """Notices as remarks, and the build's log as it comes, line by line."""

    def __init__(self, *, log: bool) -> None:
        super().__init__("sending", quiet=not log)
        self._log = log
        self._lines = Lines()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Output):
            for line in self._lines.feed(event.data) if self._log else ():
                text = clean(line.decode("utf-8", "replace"))
                talk(f"{click.style(event.host + ':', dim=True)} {text}", wrap=False)
        else:
            super().__call__(event)


@click.command(
    "build", cls=Verb, examples=("fleet build deepspeed --ops cpu_adam", "fleet build ./my-extension --on gpu02")
)
@click.argument("what", metavar="deepspeed|PATH", shell_complete=completed("buildable"))
@click.option("--version", metavar="V", help="deepspeed's version [0.19.8].")
@click.option("--source", type=click.Path(path_type=Path), metavar="DIR", help="deepspeed's own tree instead.")
@click.option(
    "--arch",
    default=Build.arch,
    metavar="LIST",
    help='Compute capabilities, "8.0;9.0" [auto: those of all GPUs of all hosts].',
)
@click.option("--ops", default="", metavar="NAMES", help="deepspeed's ops to compile: cpu_adam,utils,...")
@click.option("--cpu", is_flag=True, help="Only for the CPU, whatever GPUs there are.")
@click.option("--on", metavar="HOST", shell_complete=completed("host"), help="The host that builds [the first].")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="For the build; repeatable.")
@click.option("--install/--no-install", default=True, help="Install the wheel on every host [yes].")
@click.option(
    "--builds-dir",
    type=click.Path(path_type=Path),
    default=Path(Build.builds_dir),
    metavar="DIR",
    help="Where logs and wheels go on this machine [builds].",
)
@click.option(
    "--import-timeout",
    type=Limited(Build, "import_timeout"),
    default=Build.import_timeout,
    metavar="S",
    help="Seconds that importing it may take on a host [120].",
)
@without(own=("on",))
def build(
    what: str,
    version: str | None,
    source: Path | None,
    arch: str,
    ops: str,
    cpu: bool,
    on: str | None,
    env: tuple[str, ...],
    install: bool,
    builds_dir: Path,
    import_timeout: float,
) -> int:
    """Build a wheel on one host, for the GPUs of all of them, and install it everywhere.

    The compilers are checked first. For a folder called deepspeed write ./deepspeed.
    """
    return perform(
        lambda fleet: fleet.plan.build(
            what,
            version=version,
            source=source,
            arch=arch,
            ops=[op.strip() for op in ops.split(",") if op.strip()],
            on=on,
            cpu=cpu,
            env=pairs("--env", env),
            install=install,
            builds_dir=builds_dir,
            import_timeout=import_timeout,
        ),
        show,
        asked_for=True,
        line=BuildTalk(log=not settings_of().silent),
    )


def show(report: Report) -> None:
    """Where the wheel is, then who has it; with -q only where the log of a failure is."""
    if report.ok and settings_of().quiet:
        return
    built = report.read(Built)
    if built.wheel is not None:
        arch = f" for {';'.join(built.arch)}" if built.arch else ""
        echo(f"{built.wheel}: built on {built.on}{arch}")
    elif built.log is not None:
        talk(f"the log: {built.log}")
    if built.wheels is not None:
        show_wheels(report)
