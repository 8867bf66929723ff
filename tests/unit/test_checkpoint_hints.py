"""Ranks that disagree about a checkpoint: what they say of it themselves."""

from __future__ import annotations

import pytest

from fleet.rules.worked_out import disagreed

ANEW = "epoch 0\nepoch 1\n"


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("Resuming training from snapshot at Epoch 5", "PATH"),
        ("Loading snapshot /root/work/snapshot.pt", "/root/work/snapshot.pt"),
        ("  Continuing training from checkpoint, will skip to saved global_step", "PATH"),
        ("Restoring states from the checkpoint path at '/x/last.ckpt'", "/x/last.ckpt"),
        ("goes on after epoch 2", "PATH"),
    ],
)
def test_the_host_that_went_on_has_it(line: str, path: str) -> None:
    said = {"gpu1": ANEW, "gpu2": f"start\n{line}\nepoch 6\n"}
    hint = disagreed(said)
    assert hint is not None and f"Only gpu2 says '{line.strip()}'" in hint
    assert f"'fleet sync --data {path} --from gpu2'" in hint


def test_all_that_went_on_are_named() -> None:
    hint = disagreed({"gpu1": "resumed at 5\n", "gpu2": "resumed at 5\n", "gpu3": ANEW})
    assert hint is not None and hint.startswith("Only gpu[1-2] say 'resumed at 5': if the others found no checkpoint")


def test_nothing_where_all_say_so_or_none_does() -> None:
    assert disagreed({"gpu1": "resumed at 5\n", "gpu2": "resumed at 5\n"}) is None
    assert disagreed({"gpu1": ANEW, "gpu2": '  File "/root/work/resume from.py", line 18, in resuming\n'}) is None
