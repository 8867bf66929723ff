"""`fleet check --bench`: which GPUs are measured, what comes of it, and which one is called slow; drawn speeds, held to
those that were made slow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fleet.model import Host
from fleet.ops import bench
from fleet.rules.bench import FLOORS, RULES, Part, measured_in, slow_parts, unlike
from fleet.rules.judge import judge
from fleet.rules.rule import Want
from fleet.rules.view import view
from tests.host_facts import facts_of
from tests.in_process import LocalTransport, Outcome, command_line
from tests.scripted import Scripted

NAMES = ("a", "b", "c")


# -- who is slow ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(400))
def test_of_drawn_speeds_those_that_were_made_slow_are_found(seed: int) -> None:
    """Up to a fifth of the parts is slow by more than the spread of the others allows for, or none is."""
    draw = Random(seed)
    count, gpus = draw.randint(5, 64), draw.random() < 0.7
    floor, usual = FLOORS["GPU" if gpus else "CPU"], draw.choice([0.05, 60.0, 900.0])
    noise = floor * draw.choice([0.0, 0.1, 0.3])
    parts = [Part(f"n{n}", 0 if gpus else None, "m") for n in range(count)]
    rates = {part: usual * (1 + draw.uniform(-noise, noise)) for part in parts}
    slow = set(draw.sample(parts, draw.randint(0, count // 5)))
    rates |= {part: usual * (1 - floor) * draw.uniform(0.1, 0.85) for part in slow}
    assert slow_parts(rates) == slow


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ([100, 50], []),  # either may be the one that is well
        ([100, 99, 60], [2]),
        ([100, 100, 95.1], []),  # by less than the floor
        ([100, 80, 60], []),  # three that differ have no usual value
        ([100, 100, 60, 60], []),
        ([100, 100, 100, 60, 60], [3, 4]),
        ([100, 90, 110, 95, 105, 80], []),  # by less than their spread
        ([100, 100, 100, 300], []),  # a fast one is no fault
    ],
)
def test_median_and_spread(rates: list[float], slow: list[int]) -> None:
    parts = {Part(f"n{n}", 0, "m"): float(rate) for n, rate in enumerate(rates)}
    assert [part.host for part in parts if part in slow_parts(parts)] == [f"n{n}" for n in slow]


@pytest.mark.parametrize(
    ("rates", "is_unlike"),
    [
        ([100, 50], True),
        ([100, 90], False),
        ([100, 100, 60, 60], True),
        ([1.65, 1.7, 1.73, 1.97, 3.2], False),
        ([5], False),
    ],
)
def test_parts_of_which_any_may_be_slow_are_unlike(rates: list[float], is_unlike: bool) -> None:
    values = {f"n{n}": ((Part(f"n{n}", 0, "m"), {"tflops": rate, "gbytes": 1.0}),) for n, rate in enumerate(rates)}
    (rule,) = [each for each in RULES if each.id == "bench-unlike"]
    assert len([*unlike(rule, values)]) == is_unlike


def test_of_many_that_are_unlike_the_slowest_and_the_fastest_are_listed() -> None:
    rates = [100, 60, 99, 61, 101, 62]
    values = {f"n{n}": ((Part(f"n{n}", None, "m"), {"tflops": rate, "gbytes": 1.0}),) for n, rate in enumerate(rates)}
    (rule,) = [each for each in RULES if each.id == "bench-unlike"]
    (found,) = unlike(rule, values)
    assert "6 alike (m) differ: n1 60, n3 61 to n0 100, n4 101 TFLOP/s" in found.message


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": [], "cpu.model": None},
        {"gpus": [], "cpu.model": "<missing>"},
        {"gpus": [], "cpu.usable": None},
        {"gpus": [], "cpu": "<missing>"},
        {"gpus": [{"index": 0, "name": None, "memory": None, "uuid": None, "driver": None, "ecc_errors": None}]},
    ],
)
def test_parts_of_a_model_that_is_not_known_are_no_peers(change: dict[str, Any]) -> None:
    views = {}
    for n, rate in enumerate([100, 100, 100, 5]):
        speeds = [{"gpu": None if not change["gpus"] else 0, "tflops": float(rate), "gbytes": float(rate)}]
        views[f"n{n}"] = view(facts_of(f"n{n}", change) | {"speeds": speeds}, Want(f"n{n}"))
    assert not [each for each in judge(views) if each.id.startswith("bench")] and len(measured_in(views)) == 4


# -- what is measured ----------------------------------------------------------------------------------------------
def gpu(index: int = 0, **more: Any) -> dict[str, Any]:
    return {"index": index, "name": "A100", "memory": 80 << 30, "uuid": f"GPU-{index}", "used": 1 << 29, **more}


CUDA = {"version": "2.7", "cuda": "12.6"}
KNOWN: dict[str, Any] = {"torch": CUDA, "runs": [], "gpus": [gpu(), gpu(1)], "gpu_processes": []}
KNOWN |= {"pci_gpus": 0, "driver_gpus": 0}
UNSURE = "GPU {}: it is not known who uses it"
PROCESS = {"pid": 7, "gpu": "GPU-1", "memory": None}


@pytest.mark.parametrize(
    ("facts", "measured", "why"),
    [
        ({}, [0, 1], None),
        ({"gpu_processes": [PROCESS]}, [0], "GPU 1: in use"),
        ({"gpus": [gpu(), gpu(1, used=9 << 30)]}, [0], "GPU 1: in use"),
        ({"gpus": [gpu(used=9 << 30), gpu(1)], "gpu_processes": [PROCESS]}, None, "GPU 0, 1: in use"),
        ({"gpus": [gpu(mode="Prohibited"), gpu(1)]}, [1], "GPU 0: it may not compute as a whole"),
        ({"gpus": [gpu(), gpu(1, mig=True)]}, [0], "GPU 1: it may not compute as a whole"),
        ({"gpus": [gpu(reset=True), gpu(1)]}, [1], "GPU 0: it may not compute as a whole"),
        ({"gpu_processes": "<missing>"}, None, "GPU 0, 1: it is not known who uses it"),
        ({"gpus": [gpu(uuid=None), gpu(1)]}, [1], "GPU 0: it is not known who uses it"),
        ({"gpu_processes": [{**PROCESS, "gpu": None}]}, None, "GPU 0, 1: it is not known who uses it"),
        ({"gpus": [gpu(uuid=None), gpu(1)], "gpu_processes": [{**PROCESS, "gpu": None}]}, None, UNSURE.format("0, 1")),
        ({"gpu_processes": [PROCESS, {**PROCESS, "gpu": "[N/A]"}]}, None, f"{UNSURE.format(0)}; GPU 1: in use"),
        ({"gpus": [], "pci_gpus": 8}, None, "its GPUs are not known"),  # no nvidia-smi
        ({"gpus": [], "driver_gpus": 8}, None, "its GPUs are not known"),
        ({"gpus": [], "pci_gpus": "<missing>"}, None, "its GPUs are not known"),
        ({"gpus": [], "torch": {"version": "2.7", "cuda": None, "hip": "6.2"}}, None, "its GPUs are not known"),
        ({"gpus": "<missing>"}, None, "its GPUs are not known"),
        ({"runs": "<missing>"}, None, "it is not known whether runs are live there"),
        ({"torch": None}, None, "no torch in its training interpreter"),
        ({"torch": "<missing>"}, None, "no torch in its training interpreter"),
        ({"torch": {"version": "2.7", "cuda": None}}, None, "its torch is not built for its GPUs"),
        ({"torch": {"version": "2.7", "cuda": None}, "gpus": []}, [], None),
    ],
)
def test_only_what_is_known_to_be_idle_is_measured(facts: Any, measured: list[int] | None, why: str | None) -> None:
    whole = {name: value for name, value in {**KNOWN, **facts}.items() if value != "<missing>"}
    found, text = bench.idle(Host("a", "a"), whole)  # type: ignore[arg-type]
    assert (None if found is None else [each["index"] for each in found], text) == (measured, why)


def test_only_selected_devices_are_measured() -> None:
    found, _ = bench.idle(Host("a", "a", devices=(1,)), KNOWN)  # type: ignore[arg-type]
    assert found is not None and [each["index"] for each in found] == [1]


def node(name: str, out: str, **more: Any) -> dict[str, Any]:
    facts = facts_of(name, {"gpu_processes": [], "runs": [], **more})
    facts["network"]["advertised"] = None
    return {"probe": [{"facts": facts}], "bench": [{"port": 4000}, {"status": 0, "out": out, "why": ""}]}


def speeds(count: int = 8, **slow: float) -> str:
    figures = {str(n): {"tflops": 260.0 + n, "gbytes": 1500.0 + n} for n in range(count)}
    for index, factor in slow.items():
        figures[index.strip("_")]["tflops"] *= factor
    return f"a sitecustomize prints\n{json.dumps(figures)}\n"


def check(nodes: Scripted, *options: str) -> Outcome:
    Path("fleet.yaml").write_text("hosts: [a, b, c]\n")
    return command_line(["check", "--bench", *options], nodes)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_the_slow_gpu_is_named_with_what_its_peers_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs of a host run at once, by their UUIDs: the order of CUDA's numbers is not that of nvidia-smi."""
    orders, real = list[Any](), bench.bench

    def spied(hosts: Any, wanted: Any, *rest: Any) -> Any:
        orders.append(wanted({}))
        return real(hosts, wanted, *rest)

    monkeypatch.setattr(bench, "bench", spied)
    nodes = Scripted({name: node(name, speeds(_3=0.5 if name == "b" else 1.0)) for name in NAMES})
    document = check(nodes, "--json").document()
    (found,) = [each for each in document["findings"] if each["id"].startswith("bench")]
    assert found["gpus"] == {"b": [3]} and found["severity"] == "warning"
    assert "b: GPU 3 reaches 132 TFLOP/s in a matrix product, the median of 24 (NVIDIA A100" in found["message"]
    assert document["hosts"]["b"]["facts"]["speeds"][3] == {"gpu": 3, "tflops": 131.5, "gbytes": 1503.0}
    order = orders[0]["b"]
    assert order.env == {"CUDA_VISIBLE_DEVICES": ",".join(f"GPU-{n}" for n in range(8))} and order.program is None
    assert json.loads(order.argv[-1]) == [[*range(8)], bench.SECONDS, bench.LATE_SECONDS]
    shown = check(Scripted({name: node(name, speeds(_3=0.5 if name == "b" else 1.0)) for name in NAMES}))
    assert "the slowest by their matrix product:" in shown.out and "  b GPU 3  132 TFLOP/s  1503 GB/s" in shown.out


@pytest.mark.parametrize(
    "out",
    [
        "",
        "x",
        "[]",
        "null",
        "{}",
        '{"0": 1}',
        '{"0": {"tflops": -1, "gbytes": 1}}',
        '{"0": {"tflops": NaN, "gbytes": 1}}',
    ]
    + ['{"0": {"tflops": 1e999, "gbytes": 1}}', '{"0": {"tflops": "1", "gbytes": 1}}', "[" * 2000],
)
def test_what_is_no_figure_is_said(out: str) -> None:
    nodes = Scripted({name: node(name, out if name == "a" else speeds()) for name in NAMES})
    done = check(nodes)
    assert "host a: not measured: the program ended without a figure" in done.err and "bench" not in done.out


def test_a_gpu_that_fails_is_named_and_costs_no_other() -> None:
    figures = {str(n): {"tflops": 260.0, "gbytes": 1500.0} for n in range(8)}
    broken = json.dumps({**figures, "5": {"error": "CUDA error: uncorrectable ECC error encountered"}})
    document = check(
        Scripted({name: node(name, broken if name == "c" else speeds()) for name in NAMES}), "--json"
    ).document()
    (found,) = [each for each in document["findings"] if each["id"].startswith("bench")]
    assert (found["id"], found["gpus"]) == ("bench-failed", {"c": [5]})
    assert "GPU 5 failed: CUDA error: uncorrectable ECC error encountered" in found["message"]


def test_nothing_is_measured_beside_a_live_run() -> None:
    run = {"run": "r-20260101-000000-abcd", "about": None, "devices": None}
    nodes = Scripted({name: node(name, speeds(), runs=[run] if name == "c" else []) for name in NAMES})
    done = check(nodes)
    assert "nothing is measured while runs are live: r-20260101-000000-abcd" in done.err
    assert not [program for _, program, _ in nodes.sent if program == "bench"]


def test_a_node_cannot_make_up_what_the_head_keeps() -> None:
    lies = {"before": [3], "speeds": [{"gpu": {}, "tflops": "x"}]}
    done = check(Scripted({name: node(name, speeds(), **lies) for name in NAMES}), "--json")
    assert (
        "before" not in done.document()["hosts"]["a"]["facts"]
        and len(done.document()["hosts"]["a"]["facts"]["speeds"]) == 8
    )


# -- the real program ----------------------------------------------------------------------------------------------
# a driver that shows the devices before the first one that it cannot use
CUDA_OF = """
class cuda:
    init = staticmethod(lambda: {init})
    synchronize = None
class _C:
    _cuda_getDeviceCount = staticmethod(lambda: {count})
"""


@pytest.mark.parametrize(
    ("init", "count", "error"),
    [("None", 1, "torch sees 1 of 3 GPUs that are idle"), ("1 / 0", 3, "division by zero"), ("None", 3, None)],
)
def test_a_gpu_that_hides_others_is_not_guessed(here: Path, init: str, count: int, error: str | None) -> None:
    (here / "torch.py").write_text(CUDA_OF.format(init=init, count=count))
    line = [sys.executable, "-c", bench.BENCH, json.dumps([[0, 4, 7], 0.1, 5])]
    done = subprocess.run(line, env={"PYTHONPATH": str(here)}, capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"host": {"error": error}} if error else found.keys() == {"0", "4", "7"}


def test_what_keeps_all_gpus_from_being_measured_names_none(here: Path) -> None:
    bad = json.dumps({"host": {"error": "torch sees 5 of 8 GPUs that are idle"}})
    nodes = Scripted({name: node(name, bad if name == "c" else speeds()) for name in NAMES})
    document = check(nodes, "--json").document()
    (found,) = [each for each in document["findings"] if each["id"].startswith("bench")]
    assert (found["id"], found["hosts"], found.get("gpus")) == ("bench-failed", ["c"], None)
    assert found["message"] == "c: torch sees 5 of 8 GPUs that are idle"
    assert document["hosts"]["c"]["facts"]["speeds"] == [{"gpu": None, "error": "torch sees 5 of 8 GPUs that are idle"}]


# each product is computed forty times: however busy this machine is, that host is slower than the others
SLOWED = """#!/bin/bash
if [[ $2 == *"torch.mm"* ]]; then
    set -- "$1" "import torch; mm = torch.mm; torch.mm = lambda *a, **b: [mm(*a, **b) for _ in range(40)][-1]$2" "$3"
fi
exec "{python}" "$@"
"""


@pytest.mark.slow
def test_the_host_whose_products_take_longer_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own products and copies, on processors."""
    pytest.importorskip("torch")
    monkeypatch.setattr(bench, "SECONDS", 2.0)
    slowed = here / "slowed"
    slowed.write_text(SLOWED.format(python=sys.executable))
    slowed.chmod(0o755)
    hosts = {name: {} for name in "abde"} | {"c": {"python": str(slowed)}}
    (here / "fleet.yaml").write_text(json.dumps({"defaults": {"python": sys.executable}, "hosts": hosts}))
    done = command_line(["--json", "check", "--bench", "--timeout", "200"], LocalTransport())
    document = done.document()
    assert all(len(each["facts"]["speeds"]) == 1 for each in document["hosts"].values()), done.err
    found = [each for each in document["findings"] if each["id"] == "bench-slow" and "product" in each["message"]]
    assert [each["hosts"] for each in found] == [["c"]], [
        each["facts"]["speeds"] for each in document["hosts"].values()
    ]
