"""Checks environment variables, of all options and files that set them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fleet.errors import UsageError
from fleet.inventory.fields import ENV_NAME

MAX_VARIABLE = (128 << 10) - 1  # bytes of NAME=VALUE that Linux's exec takes
# Variables of other launchers. Libraries (BMTrain, Lightning, MPI) follow them, and take each rank for a separate task.
OF_LAUNCHERS = (
    *("SLURM_*", "SLURMD_*", "SRUN_*", "SBATCH_*", "PMI_*", "PMI2_*", "PMIX_*", "PRTE_*", "OMPI_*", "MV2_COMM_*"),
    *("HYDRA_*", "I_MPI_*", "MPI_LOCAL*", "PALS_*", "JSM_*", "FLUX_TASK_*"),
)


def pattern_of_launchers(kept: Iterable[str]) -> str:
    """Returns a regular expression of the variables in OF_LAUNCHERS, except those `kept`."""
    names = "|".join(name.replace("*", ".*") for name in OF_LAUNCHERS)
    return f"(?!(?:{'|'.join(map(re.escape, kept))})$)(?:{names})"


def check_variable(option: str, name: str, value: str, where: str | None = None) -> None:
    """Raises UsageError for a variable that no process can have. Its messages show neither the value nor an invalid
    name: that may be part of a secret value."""
    if not ENV_NAME.fullmatch(name):
        raise UsageError(
            f"{option}: not a variable name in front of '='", where=where, hint="letters, digits and _, as in KEY=VALUE"
        )
    if name.startswith("FLEET_"):
        raise UsageError(f"{option} {name}: names that begin with FLEET_ are fleet's own", where=where)
    if "\0" in value:
        raise UsageError(f"{name}: a value cannot hold a NUL byte", where=where)
    size = len(f"{name}={value}".encode("utf-8", "surrogateescape"))
    if size > MAX_VARIABLE:
        text = f"variable {name}: {size} bytes are more than any program can be given, {MAX_VARIABLE}"
        raise UsageError(text, hint="put it into a file, 'fleet sync' copies it there; the variable names the file")
