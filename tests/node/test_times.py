"""When the logs of a run grew, and what was written since."""

from __future__ import annotations

import time
from pathlib import Path

from fleet.node.run import times
from fleet.node.run.times import Times, sizes_at, thinned
from tests.node.nodes import answer, folder_of, ranks_argv, supervise_spec, until


def test_what_was_written_since_is_known_to_a_second(run: str, home: Path) -> None:
    argv = ranks_argv("echo early; sleep 10; echo late; sleep 1000")
    assert answer("run.supervise", supervise_spec(run, argv), home)["event"] == "started"
    log = folder_of(home, run) / "rank0.out"
    until(lambda: log.exists() and log.read_text() == "early\nlate\n")
    latest = {"run": run, "ago": 0.0}
    until(lambda: answer("run.times", latest, home)["offsets"] == {"rank0.out": 11})
    between = time.time() - log.stat().st_mtime + 6  # as far from one as a slow start of what looks is from the other
    said = answer("run.times", {"run": run, "ago": between}, home)
    assert said == {"event": "since", "offsets": {"rank0.out": 6}}
    assert answer("run.times", {"run": run, "ago": 600.0}, home)["offsets"] == {}
    assert answer("run.times", {"run": "no-such", "ago": 0.0}, home)["event"] == "failed"
    answer("run.stop", {"run": run, "grace": 0.0, "reason": "over"}, home)


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
