"""Whoever is asked to stop has the whole grace: cells of the table of graces.py, many at once, as they mostly wait."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.node.graces import GRACES, REAL, STANDINS, Cell, draw, play

SEED = int(os.environ.get("FLEET_SEED", "1"))


def wrong(cells: Sequence[Cell], folder: Path, run: str, at_once: int) -> str:
    """Returns, in lines, what is not as it must be: of a cell that is wrong among others, when it is played alone, as a
    rank on a busy machine may have had too little of its grace."""

    def tried(cell: Cell, name: str) -> list[str]:
        try:
            found = play(cell, folder / name, f"{name}-{run}")
        except AssertionError as error:
            found = [str(error)]
        return [f"{cell}: {each}" for each in found]

    names = [f"c{number}" for number in range(len(cells))]
    with ThreadPoolExecutor(at_once) as threads:
        found = list(threads.map(tried, cells, names))
    again = [tried(cell, f"{name}a") for cell, name, lines in zip(cells, names, found, strict=True) if lines]
    return "\n".join(line for lines in again for line in lines)


def test_ranks_save_their_work_or_are_killed_when_it_is_time(tmp_path: Path, run: str) -> None:
    assert wrong(draw(SEED, STANDINS, [10.0], most=14), tmp_path, run, 7) == ""


@pytest.mark.slow
def test_the_table(tmp_path: Path, run: str) -> None:
    assert wrong(draw(SEED, STANDINS, GRACES), tmp_path, run, 6) == ""


@pytest.mark.real
@pytest.mark.parametrize("launcher", REAL)
def test_the_table_under_real_launchers(launcher: str, tmp_path: Path, run: str) -> None:
    beyond_its_own = Cell(
        launcher, "loader", "SIGTERM", "stop", "long", 60.0
    )  # torchrun's clock, and DeepSpeed's: 30 s
    assert wrong([beyond_its_own, *draw(SEED, [launcher], GRACES, most=10)], tmp_path, run, 4) == ""
