"""The rules, on facts of healthy hosts of which some differ, and of odd ones."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.codec import plain
from fleet.rules.judge import RULES, judge
from fleet.rules.rule import MISSING, SEVERITIES, Finding, Want, lookup
from fleet.rules.view import view
from tests.host_facts import BASE, facts_of


def ids(*changes: dict[str, Any], slots: int | None = 8) -> dict[str, str]:
    """{finding id: severity} of three healthy hosts with a change to the first ones."""
    names = [f"gpu{n}" for n in range(1, 4)]
    facts = {name: facts_of(name, *changes[n : n + 1]) for n, name in enumerate(names)}
    views = {name: view(facts[name], Want(name, slots, modules=("torch",))) for name in names}
    return {f.id: f.severity for f in judge(views)}


def test_healthy_hosts_have_no_findings() -> None:
    assert ids() == {}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"torch.version": "2.4.0"}, {"torch-version": "error"}),
        ({"torch.cuda": "12.1"}, {"torch-build": "error"}),
        ({"torch": None}, {"module-missing": "error"}),
        ({"arch": "aarch64"}, {"arch": "error"}),
        ({"python.version": "3.12.1"}, {"python-version": "error"}),
        ({"python.version": "3.11.1"}, {"python-patch": "info"}),
        ({"glibc": "2.31"}, {"glibc": "warning"}),
        ({"driver": "560.1"}, {"driver-version": "warning"}),
        ({"compilers.gcc": None}, {"gcc": "warning"}),
        ({"deepspeed.ops": []}, {"deepspeed-ops": "warning"}),
        ({"disks.workdir.free": 1 << 20}, {"disk-workdir": "error"}),
        ({"disks.workdir.free": 2 << 30}, {"disk-workdir": "warning"}),
        ({"disks.shm.total": 64 << 20}, {"shm-size": "warning"}),
        ({"limits.memlock": 65536}, {"memlock": "warning"}),
        ({"limits.memlock": 65536, "infiniband": []}, {"infiniband": "warning"}),
        ({"clock.offset": -90.0}, {"clock": "warning"}),
        ({"clock.offset": 2.0, "clock.uncertainty": 1.5}, {}),
        ({"packages.triton": "9"}, {"packages": "info"}),
        ({"hostname": "gpu2"}, {"hostname": "warning"}),
        ({"interfaces": []}, {}),
        ({"timed_out": ["gpus"], "gpus": "<missing>", "gpu_error": "<missing>"}, {"hangs-gpus": "error"}),
    ],
)
def test_one_deviation_one_finding(change: dict[str, Any], found: dict[str, str]) -> None:
    assert ids(change) == found


def test_shared_memory_matters_only_between_ranks() -> None:
    one_gpu = {"disks.shm.total": 64 << 20, "gpus": BASE["gpus"][:1], "pci_gpus": 1, "driver_gpus": 1}
    assert "shm-size" in ids(one_gpu, one_gpu, one_gpu, slots=2)
    assert "shm-size" not in ids(one_gpu, one_gpu, one_gpu, slots=1)
    assert "shm-size" not in ids(one_gpu, one_gpu, one_gpu, slots=None)


def test_slots_on_hosts_without_gpus_are_no_error() -> None:
    bare = {"gpus": [], "pci_gpus": 0, "driver": None, "torch.cuda": None, "torch.nccl": None}
    assert ids(bare, bare, bare, slots=8) == {}


def messages(values: list[Any]) -> list[str]:
    views = {f"n{i}": view(facts_of(f"n{i}", {"kernel": value})) for i, value in enumerate(values, 1)}
    return [f.message for f in judge(views) if f.id == "kernel"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "a", "b"], "n3 has kernel b, the 2 others a"),
        (["b", "a", "a", "b", "a"], "n[1,4] have kernel b, the 3 others a"),
        (["a", "b"], "no agreement on kernel: n1 a; n2 b"),
        (["a", "a", "b", "b"], "no agreement on kernel: n[1-2] a; n[3-4] b"),
        (["a", "a", "b", "c"], "n3 has kernel b, n4 has kernel c; the 2 others a"),
        (["a", "a", None], "n3 has no kernel, the 2 others a"),
        ([None, None, "a"], "n3 has kernel a, the 2 others none"),
        (["a", "a"], None),
        (["a"], None),
    ],
)
def test_who_deviates_is_said_and_a_tie_is_a_split(values: list[Any], message: str | None) -> None:
    assert messages(values) == ([message] if message else [])


def test_every_rule_has_an_id_of_its_own_a_remedy_and_a_sound_shape() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.remedy and "\n" not in rule.remedy and rule.what
        assert bool(rule.levels) == (rule.kind in ("minimum", "maximum")), rule.id
        worst_first = [limit for limit, _ in rule.levels]
        assert worst_first == sorted(worst_first, reverse=rule.kind == "maximum"), rule.id
        assert [SEVERITIES.index(s) for _, s in rule.levels] == sorted(SEVERITIES.index(s) for _, s in rule.levels)


def test_every_fact_that_a_rule_names_is_there() -> None:
    """A typo in a path would make a rule that never speaks."""
    seen = view(facts_of("n"), Want(ranks=8))
    paths = {r.id: r.fact for r in RULES if isinstance(r.fact, str) and not r.fact.startswith("hangs.")}
    assert [rule for rule, path in paths.items() if lookup(seen, path) is MISSING] == []
    assert [r.id for r in RULES if r.when and lookup(seen, r.when) is MISSING] == []


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"timed_out": ["system"]},
        {"python": None, "gpus": None, "disks": {}},
        {"kernel": ["a"], "cpu": 3, "limits": None},
    ],
)
def test_facts_that_are_not_there_or_odd_are_not_judged(facts: dict[str, Any]) -> None:
    found = judge({"a": view(facts), "b": view(facts_of("b"))})
    assert not [f for f in found if f.severity == "error"]


def test_the_worst_comes_first() -> None:
    change = {"torch.version": "1", "packages.triton": "1", "glibc": "1"}
    assert list(ids(change).values()) == ["error", "warning", "info"]


def test_findings_as_json() -> None:
    finding = Finding("x", "info", ("a", "b"), "m", "r")
    assert plain(finding) == {"id": "x", "severity": "info", "hosts": ["a", "b"], "message": "m", "remedy": "r"}


@pytest.mark.parametrize(
    ("slots", "gpu", "command", "severity"),
    [
        (2, 3, "python other.py", "warning"),
        (2, 1, "python other.py", "error"),
        (None, 3, "python other.py", "error"),
        (8, 7, "python other.py", "error"),
        (8, 0, "/usr/bin/nvidia-cuda-mps-server", None),
        (8, 0, "nvidia-cuda-mps-control -d", None),
        (8, 0, "python my-nvidia-cuda-mps-server.py", "error"),
    ],
)
def test_gpus_in_use_are_an_error_only_where_ranks_will_use_them(
    slots: int | None, gpu: int, command: str, severity: str | None
) -> None:
    uuid = BASE["gpus"][gpu]["uuid"]
    change = {"gpu_processes": [{"pid": 4711, "gpu": uuid, "command": command}]}
    assert ids(change, slots=slots).get("gpu-busy") == severity


def test_a_process_whose_gpu_is_not_known_may_be_on_any() -> None:
    gpus = [*BASE["gpus"][:-1], {**BASE["gpus"][-1], "uuid": None}]
    change = {"gpus": gpus, "gpu_processes": [{"pid": 4711, "gpu": None, "command": "python other.py"}]}
    assert ids(change, slots=2).get("gpu-busy") == "error"


def test_counts_may_differ_as_the_inventory_says() -> None:
    """The remedy of the finding, followed."""
    one = {"gpus": BASE["gpus"][:1], "pci_gpus": 1, "driver_gpus": 1}
    assert "gpu-count" in ids(one, slots=None)
    assert "gpu-count" not in ids(one, slots=1)
