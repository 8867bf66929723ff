"""When the logs of a run grew, and what was written since."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from fleet.node.base.run_folder import NODE
from fleet.node.run import times
from fleet.node.run.times import Times, sizes_at, thinned
from tests.clock import HandClock
from tests.node.nodes import answer, final, folder_of, ranks_argv, supervise_spec


def test_what_was_written_since_is_known_to_a_second(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, clock = folder_of(tmp_path, run), HandClock()
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"node": NODE}))
    kept = Times(str(folder), clock)
    for text, until in (("early\n", 1010.0), ("late\n", 1020.0)):
        with (folder / "rank0.out").open("a") as log:
            log.write(text)
        while clock.now < until:
            kept.look(clock.now)
            clock.now += 0.25

    def since(ago: float) -> dict[str, int]:
        return times.since({"run": run, "ago": ago}, clock)["offsets"]

    assert [since(ago) for ago in (0.0, 9.0, 10.25, 11.0, 19.0, 21.0)] == [
        *({"rank0.out": size} for size in (11, 11, 6, 6, 6)),
        {},
    ]


def test_a_supervisor_keeps_them_and_a_node_tells_them(run: str, home: Path) -> None:
    assert answer("run.supervise", supervise_spec(run, ranks_argv("echo early")), home)["event"] == "started"
    final(home, run)
    assert answer("run.times", {"run": run, "ago": 0.0}, home) == {"event": "since", "offsets": {"rank0.out": 6}}
    assert answer("run.times", {"run": run, "ago": 86400.0}, home)["offsets"] == {}
    assert answer("run.times", {"run": "no-such", "ago": 0.0}, home)["event"] == "failed"


def test_old_marks_become_fewer_and_stay_true(tmp_path: Path) -> None:
    marks = [(float(n), {"rank0.out": n, f"rank{n}.err": 1}) for n in range(8)]
    assert thinned(marks)[:3] == [
        (1.0, {"rank0.out": 1, "rank0.err": 1, "rank1.err": 1}),
        (3.0, {"rank0.out": 3, "rank2.err": 1, "rank3.err": 1}),
        marks[4],
    ]
    kept = Times(str(tmp_path))
    for n in range(times.MOST + 1):
        kept.add((float(n), {"rank0.out": n}))
    assert len(kept.marks) < times.MOST and sizes_at(str(tmp_path), 1e9) == {"rank0.out": times.MOST}
    with open(kept.path, "ab") as f:
        f.write(b"[12")
    assert sizes_at(str(tmp_path), 100.0) == {"rank0.out": 99} and sizes_at(str(tmp_path), -1.0) == {}


def test_after_a_full_disk_the_next_mark_has_a_line_of_its_own(tmp_path: Path) -> None:
    kept, (most, hard) = Times(str(tmp_path), HandClock()), resource.getrlimit(resource.RLIMIT_FSIZE)

    def grow() -> None:
        with (tmp_path / "rank0.out").open("a") as log:
            log.write("line\n")
        kept.mark()

    grow()
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(kept.path).st_size + 7, hard))  # as a disk with so much room
    grow()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert sizes_at(str(tmp_path), 1e12) == {"rank0.out": 5}
    grow()
    assert sizes_at(str(tmp_path), 1e12) == {"rank0.out": 15}
