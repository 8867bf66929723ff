"""What starts a rank's command, or all ranks where no launcher does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REMOTE = Path(__file__).parents[2] / "fleet/node/run/rank"


ARGS = ("--m", "1", "--l", "--r", "--", "$$", "${local_rank}", "it's", "", "a\nb", "--nnodes=9")


def spawn(
    tmp_path: Path, argv: list[str], *words: str, at: int | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    for name in ("rank", "drain", "watch", "spawn"):
        (tmp_path / f"{name}.py").write_bytes((REMOTE / f"{name}.py").read_bytes())
    (tmp_path / "command.json").write_text(json.dumps({"argv": argv, "local_rank_at": at}))
    return subprocess.run(
        [sys.executable, "-I", "-S", tmp_path / "spawn.py", *words],
        capture_output=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "FLEET_RUN_DIR": str(tmp_path), **env},
    )


def test_spawn_hands_a_rank_its_argv_byte_for_byte(tmp_path: Path) -> None:
    odd = [*ARGS, "\udcff\udc80", "é"]
    show = "import os,sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
    done = spawn(tmp_path, [sys.executable, "-c", show, *odd], RANK="7", LOCAL_RANK="1")
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "rank7.out").read_bytes()
    assert said == b"|".join(a.encode("utf-8", "surrogateescape") for a in odd)


def test_spawn_puts_local_rank_where_deepspeed_would(tmp_path: Path) -> None:
    show = "import sys; print(sys.argv[1:])"
    spawn(tmp_path, [sys.executable, "-u", "-c", show, "--x"], RANK="0", LOCAL_RANK="3", at=4)
    assert (tmp_path / "rank0.out").read_text() == "['--local_rank=3', '--x']\n"


def test_spawn_as_the_engine_ends_the_others_with_the_first_failure(tmp_path: Path) -> None:
    # a rank that is ended before it is there leaves no record: the failing one waits for the others
    script = """cd "$FLEET_RUN_DIR"; echo up
    [ "$RANK" = 5 ] || exec sleep 1000
    until grep -q up rank4.out && grep -q up rank6.out; do sleep 0.05; done
    exit 3"""
    done = spawn(tmp_path, ["sh", "-c", script], "4", "3")
    assert done.returncode == 3
    ends = {r: json.loads((tmp_path / f"rank{r}.json").read_text()) for r in (4, 5, 6)}
    assert ends[5]["status"] == 3 and ends[4]["signal"] == ends[6]["signal"] == 15
    assert [ends[r]["local_rank"] for r in (4, 5, 6)] == [0, 1, 2]


def test_spawn_as_the_engine_passes_a_signal_on_as_128_plus_n(tmp_path: Path) -> None:
    assert spawn(tmp_path, ["sh", "-c", "kill -9 $$"], "0", "1").returncode == 137
