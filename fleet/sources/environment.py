"""Defines the source `env`: a platform has started this command in every container. No container reaches another one.
So only `fleet launch` has this source, and each container runs its own part of the run, by fleet/node/container."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.engines.base import Option
from fleet.errors import UsageError
from fleet.model import Inventory
from fleet.node.container.options import FLEETS, ROWS
from fleet.sources.source import Source


class Environment(Source):
    """Represents the containers of a platform."""

    name, transport, asked = "env", "local", "env, in each container of a platform"
    options = [Option(name, ROWS[name][3][0].upper() + ROWS[name][3][1:] + ".", ROWS[name][0]) for name in FLEETS]

    def detect(self, environ: Mapping[str, str]) -> str | None:
        return None  # a login node may have left such variables, so they prove nothing

    def inventory(self, environ: Mapping[str, str]) -> Inventory:
        raise UsageError(
            "--on env: no container reaches another one",
            hint="fleet launch --on env train.py, started by the platform in each",
        )
