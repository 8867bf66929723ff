"""The ends of jobs as sacct printed them on clusters of others, in fleet's order of columns. A column that was not
recorded is empty, and names that were hashed there are cut. --parsable2 cuts no state: tables have `CANCELLED+`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.sources.queue import Standing, State
from fleet.sources.slurm.queue import SlurmQueue
from tests import stubs

# (where it was recorded, what sacct printed, what it is: job -> state, exit code of its run)
RECORDED = [
    (  # December 2016: a time limit has 1:0
        "github.com/ubccr/xdmod, tests/artifacts/xdmod/referencedata/phillips.log, pozidriv.log",
        """\
163485|CANCELLED by 380693|0:0|290d9b6f
165381|TIMEOUT|1:0|3eb3511f
167758|COMPLETED|0:0|7775eddc
168668|FAILED|1:0|7c221d1a
193203|FAILED|127:0|ee576bf5
1003521|FAILED|29:0|f991c8d9
1004648|PREEMPTED|0:0|32cbcb50
""",
        {
            "163485": ("CANCELLED", 130),
            "165381": ("TIMEOUT", 124),
            "167758": ("COMPLETED", 0),
            "168668": ("FAILED", 1),
            "193203": ("FAILED", 1),
            "1003521": ("FAILED", 29),
            "1004648": ("PREEMPTED", 130),
        },
    ),
    (  # 2015: tasks that ended alike share a row
        "github.com/ubccr/xdmod, tests/artifacts/xdmod/unit/shredder/slurm/input/accounting-logs-with-job-arrays.log",
        """\
4103947_100|TIMEOUT|1:0|1AbC-2-3
4103947_[1-3]|TIMEOUT|1:0|1AbC-2-3
""",
        {"4103947_100": ("TIMEOUT", 124), "4103947_2": ("TIMEOUT", 124), "4103947_4": ("", 122)},
    ),
    (  # 2023 and 2024: steps end otherwise than their job, and have other names
        "github.com/rug-cit-hpc/hb-jobinfo, test/data/sacct.txt",
        """\
7965768|CANCELLED by 10314909||A9E0GMQ7UDQT2YW
7965768.batch|CANCELLED||batch
7965768.extern|COMPLETED||PPHC5
6742864|FAILED||166U
6742864.batch|FAILED||batch
6742864.extern|COMPLETED||DJ6IGUDRLEK3
6742864.0|FAILED||TRX0XW
7216821_144|TIMEOUT||6RF3SXL
7216821_144.batch|CANCELLED||batch
7216821_144.extern|COMPLETED||EB7Y35KUVY1Q1OC
7336818|NODE_FAIL||WE0UZ5L5GVLWC
""",
        {
            "7965768": ("CANCELLED", 130),
            "6742864": ("FAILED", 1),
            "7216821_144": ("TIMEOUT", 124),
            "7336818": ("NODE_FAIL", 122),
        },
    ),
    (  # Slurm 23.11.10, -P with a width of 13: the state is whole
        "github.com/virtualcell/vcell, vcell-server/src/test/resources/slurm-outputs",
        """\
2699001|CANCELLED by 54321||V_ALPHA_321800001_0_0
2699001.batch|CANCELLED||batch
2699001.extern|COMPLETED||extern
2711367|COMPLETED||V_ALPHA_321868189_0_0
2711367.batch|COMPLETED||batch
2711367.extern|COMPLETED||extern
2699101|TIMEOUT||V_ALPHA_321800101_0_0
2699102|OUT_OF_MEMORY||V_ALPHA_321800102_0_0
2699103|NODE_FAIL||V_ALPHA_321800103_0_0
2699104|FAILED||V_ALPHA_321800104_0_0
2710593|RUNNING||V_ALPHA_321860411_0_0
2710593.0|RUNNING||singularity
""",
        {
            "2699001": ("CANCELLED", 130),
            "2711367": ("COMPLETED", 0),
            "2699101": ("TIMEOUT", 124),
            "2699102": ("OUT_OF_MEMORY", 137),
            "2699103": ("NODE_FAIL", 122),
            "2699104": ("FAILED", 1),
            "2710593": ("", 122),  # slurmctld has forgotten it, and accounting missed its end
        },
    ),
    (  # 2024: a step that SIGUSR1 ended, in a job that ended well
        "github.com/martius-lab/cluster_utils/issues/87",
        """\
239023|COMPLETED|0:0|
239023.batch|COMPLETED|0:0|batch
239023.extern|COMPLETED|0:0|extern
239023.0|CANCELLED|0:10|
""",
        {"239023": ("COMPLETED", 0)},
    ),
    (  # 2026, Frontier: the job's code is its batch script's, though a step had no memory left
        "a report of job 4979526, of 2026-07-13",
        """\
4979526|FAILED|90:0|
4979526.0|OUT_OF_MEMORY|0:125|
""",
        {"4979526": ("FAILED", 90)},
    ),
    (  # 2023, with --duplicates: of a job that was requeued the last row counts; here slurmctld lost it on the way
        "github.com/troycomi/reportseff/issues/25",
        """\
235929|REQUEUED||
235929.batch|FAILED||batch
235929|REQUEUED||
235929.batch|FAILED||batch
""",
        {"235929": ("", 122)},
    ),
    (  # 2026: a code above 127 is shown without its 128, so 2 may be 130, and 127 may be 255; --completion has it whole
        "Slurm 22.05.8 with slurmdbd and MariaDB 10.11.19, in the lab",
        """\
3|FAILED|2:0|t
3.batch|FAILED|2:0|batch
3.0|COMPLETED|0:0|fleet
7|PREEMPTED|0:0|deaf
7.batch|CANCELLED|0:9|batch
9|CANCELLED by 0|0:0|gone
10_0|FAILED|3:0|arr
14|TIMEOUT|0:0|tl
14.batch|CANCELLED|0:15|batch
16|FAILED|9:0|c137
18|FAILED|127:0|c255
19|FAILED|0:0|c128
20|FAILED|64:0|c64
21|FAILED|0:9|killed
22|REQUEUED|0:15|cancelled
22.batch|CANCELLED|0:15|batch
22|CANCELLED by 0|0:0|cancelled
23|REQUEUED|0:0|requeued
23|FAILED|5:0|requeued
""",
        {
            "3": ("FAILED", 1),
            "7": ("PREEMPTED", 130),
            "9": ("CANCELLED", 130),
            "10_0": ("FAILED", 3),
            "14": ("TIMEOUT", 124),
            "16": ("FAILED", 1),
            "18": ("FAILED", 1),
            "19": ("FAILED", 1),
            "20": ("FAILED", 64),
            "21": ("FAILED", 1),
            "22": ("CANCELLED", 130),
            "23": ("FAILED", 5),
        },
    ),
    (  # as it is described there: the first attempt's row stays after the second has ended
        "github.com/MFlowCode/MFC/pull/1311",
        """\
123|PREEMPTED|0:0|
123|COMPLETED|0:0|
""",
        {"123": ("COMPLETED", 0)},
    ),
]


@pytest.mark.parametrize(("origin", "printed", "ends"), RECORDED, ids=[each[0].split(",")[0] for each in RECORDED])
def test_ends_that_were_recorded(
    origin: str,
    printed: str,
    ends: dict[str, tuple[str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each job is found by its number, and is the run's if it has the name that its script states."""
    (tmp_path / "printed").write_text(printed)
    sacct = f'echo "$*" >>{tmp_path}/asked; case $* in *--completion*) ;; *) cat {tmp_path}/printed;; esac'
    stubs.put(tmp_path, {"squeue": "", "sacct": sacct}, monkeypatch)
    names = {(row := line.split("|"))[0]: row[3] for line in printed.splitlines()}
    scripts = {}
    for job in ends:
        scripts[job] = tmp_path / job / "job.sh"
        scripts[job].parent.mkdir()
        name = names.get(job, names.get(f"{job.partition('_')[0]}_[1-3]", ""))
        scripts[job].write_text(f"#!/bin/bash\n#SBATCH --job-name={name}\n")
    found = SlurmQueue().look([*scripts.items()])
    assert {job: (found[job, script].name, found[job, script].code) for job, script in scripts.items()} == ends
    assert {it.state for it in found.values()} == {State.OVER}
    doubts = {job: it.reason for (job, _), it in found.items() if it.reason}
    assert all("exit code" in reason and "sacct shows both alike" in reason for reason in doubts.values())
    assert doubts.keys() == {job for job in ends if names.get(job) in ("t", "c137", "c255", "ee576bf5")}
    numbers = ",".join(dict.fromkeys(job.partition("_")[0] for job in ends))
    first = (tmp_path / "asked").read_text().splitlines()[0]
    assert first.startswith(f"--noheader --parsable2 --jobs={numbers} ") and "--name" not in first


def test_a_part_of_a_heterogeneous_job_is_none_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fleet requests none: `17+0` is another's, which has the number that a run's had."""
    stubs.put(tmp_path, {"squeue": "", "sacct": "echo '17+0|COMPLETED|0:0|job.sh'"}, monkeypatch)
    job = "17", tmp_path / "r/job.sh"
    assert SlurmQueue().look([job])[job] == Standing(State.OVER, code=122)
