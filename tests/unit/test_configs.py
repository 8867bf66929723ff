"""Configurations that a script is given as files, which a launch looks for before it starts anything."""

from __future__ import annotations

import pytest

from fleet.ops.run.start.preflight import configs_of


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("--deepspeed", "./deepspeed.json"), ["./deepspeed.json"]),
        (("--deepspeed", "--deepspeed_config=conf/ds.json"), ["conf/ds.json"]),
        (("--deepspeed-config", "conf/ds.yaml", "--lr", "1"), ["conf/ds.yaml"]),
        (("--deepspeed", "eyJ0cmFpbiI6IDF9"), []),  # base64
        (("--deepspeed",), []),
        ((), []),
        (("--out", "ds.json"), []),
    ],
)
def test_files_of_deepspeed(args: tuple[str, ...], found: list[str]) -> None:
    assert configs_of(args) == found
