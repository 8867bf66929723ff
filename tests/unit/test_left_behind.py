"""What is said of processes that outlived their run."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.rules.left_behind import survivors_text

HANGS = "7 (cat) hangs in the kernel, in nfs_wait"


@pytest.mark.parametrize(
    "word, said",
    [
        ({}, None),
        ({"left": []}, None),
        ({"left": [7, 8]}, "processes that would not die: 7, 8"),
        ({"left": [7], "stuck": [HANGS]}, f"processes that would not die: {HANGS}"),
    ],
)
def test_a_nodes_last_word(word: Any, said: str | None) -> None:
    assert survivors_text(word) == said
