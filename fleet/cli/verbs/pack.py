"""`fleet pack` and `fleet explain-env`: for containers that a platform starts."""

from __future__ import annotations

from pathlib import Path

import click

from fleet.cli.line.command import Verb
from fleet.cli.line.options import settings_of, without
from fleet.cli.screen.output import clean, echo, write_json
from fleet.errors import UsageError

NOT_HERE = ("inventory", "hosts", "exclude", "transport", "fanout", "connect_timeout")


@click.command("pack", cls=Verb, examples=("fleet pack", "fleet pack train.pyz"))
@click.argument("file", type=click.Path(path_type=Path), default=Path("fleet.pyz"))
@without(*NOT_HERE)
def pack(file: Path) -> int:
    """Write FILE [fleet.pyz], with which a platform's containers start a run: 'python3 fleet.pyz train.py' in each. It
    needs a python3 from 3.6 on, and nothing installed; the training interpreter is --python's.
    """
    from fleet.ops import pack as packing

    settings = settings_of()
    if not settings.dry_run:
        try:
            packing.pack(file)
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}") from None
    if settings.json:
        write_json({"verb": "pack", "ok": True, "exit_code": 0, "hosts": {}, "file": str(file)})
    elif not settings.quiet:
        would = "would write " if settings.dry_run else ""
        echo(clean(f"{would}{file}; in each container: python3 {file.name} train.py"))
    return 0


@click.command("explain-env", cls=Verb, examples=("fleet explain-env", "fleet explain-env --platform kubeflow"))
@click.option("--platform", metavar="NAME", help="Whose variables these are, where several would fit.")
@without(*NOT_HERE, "dry_run")
def explain_env(platform: str | None) -> int:
    """Show what a platform's variables mean here and what is wrong with them. Also show the lines for torchrun,
    accelerate and deepspeed that start the same by hand. Exit: 2 where something is wrong.
    """
    from fleet.node.container.explain import main

    argv = ["--platform", platform] if platform else []
    return main([*argv, *(["--json"] if settings_of().json else [])])
