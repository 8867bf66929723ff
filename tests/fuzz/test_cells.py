"""Each verb that brings files, and each trait that they may have: every cell is a test, or says why it is none."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.fuzz.cells import DELIVERIES, TRAITS, Ground

# of wheels: the test that holds it, else why there is none
WHEELS = {
    "link": "unit/test_wheel_files.py::test_a_wheel_that_a_link_leads_to_is_one",
    "mount": "they go to a folder of fleet's own, made for each set of wheels: nothing can be mounted in it",
    "ignored": "unit/test_wheel_files.py::test_ignore_files_have_no_say_over_wheels",
    "kept time": "unit/test_wheel_files.py::test_a_wheel_that_takes_anothers_place_and_time_is_read_again",
    "changing": "unit/test_wheel_files.py::test_a_truncated_wheel_is_refused",
    "emptied": "unit/test_wheel_files.py::test_folders_that_are_none",
    "killed": "node/test_wheels_cut.py::test_an_install_that_is_interrupted_heals_on_the_next_run",
    "killed twice": "node/test_wheels_cut.py::test_a_host_that_goes_down_in_the_middle_is_healed_by_the_next_install",
}


@pytest.mark.parametrize("trait", TRAITS)
@pytest.mark.parametrize("verb", DELIVERIES)
def test_a_cell(tmp_path: Path, verb: str, trait: str) -> None:
    if trait == "mount" and os.geteuid() != 0:
        pytest.skip("mounts")
    TRAITS[trait](Ground(verb, tmp_path, 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("trait", TRAITS)
@pytest.mark.parametrize("verb", DELIVERIES)
def test_a_cell_of_another_seed(tmp_path: Path, verb: str, trait: str, seed: int) -> None:
    TRAITS[trait](Ground(verb, tmp_path, seed))


@pytest.mark.parametrize("trait", TRAITS)
def test_a_cell_of_wheels_is_held_or_says_why_there_is_none(trait: str) -> None:
    file, _, name = WHEELS[trait].partition("::")
    assert not name or re.search(rf"^def {name}\(", (Path(__file__).parents[1] / file).read_text(), re.MULTILINE)
    assert name or " " in file
