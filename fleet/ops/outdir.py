"""A folder of this machine in which each host's output stands in files of its own: `exec --outdir`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fleet.errors import LimitError, UsageError
from fleet.inventory.fields import FieldError, host_name
from fleet.own import given_folder, private

ENDINGS = ("out", "err")


class Outdir:
    """Has an empty file for each stream of each host, new ones where there are such already. What another user has put
    in their place is not written through. UsageError."""

    def __init__(self, folder: str | os.PathLike[str], hosts: Iterable[str]) -> None:
        self._folder = Path(folder)
        try:
            given_folder(self._folder, "--outdir")
            for name in hosts:
                for ending in ENDINGS:
                    place = self._folder / f"{host_name(name)}.{ending}"
                    place.unlink(missing_ok=True)
                    place.open("xb").close()
        except FieldError as error:
            raise UsageError(f"--outdir: no file can be called so: {error.message}") from None
        except OSError as error:
            raise UsageError(f"--outdir: {error.filename}: {error.strerror}", hint="name a folder of yours") from None

    def add(self, host: str, stream: int, data: bytes) -> None:
        """Writes what came to the end of a file. LimitError where there is no room for it."""
        try:
            with open(self._folder / f"{host}.{ENDINGS[stream]}", "ab", opener=private) as file:
                file.write(data)
        except OSError as error:
            hint = "--outdir DIR writes elsewhere"
            raise LimitError(
                f"{self._folder} takes no more output: {error.strerror}", kind="room", hint=hint
            ) from error
