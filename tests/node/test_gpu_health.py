"""GPUs of recorded hosts, healthy and with one state planted: what the node reads of nvidia-smi, and what `fleet check`
and `fleet launch` find of it, in a fleet of four alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleet.codec import decode
from fleet.model import Host
from fleet.node.facts import gpus
from fleet.protocol.gpu_fields import BASE, BASIC, GPU_FIELDS
from fleet.protocol.messages.facts import Probed
from fleet.rules.judge import RULES
from fleet.rules.kernel import KERNEL
from fleet.rules.rule import Finding
from fleet.rules.xid import XIDS, explained
from tests.host_facts import facts_of
from tests.plans import planned
from tests.smi import RECORDINGS, Machine
from tests.verdicts import of_check, of_launch

NAMES = ("n1", "n2", "n3", "n4")
AGGREGATE = "ecc.errors.uncorrected.aggregate.sram"
VOLATILE = "ecc.errors.{}.volatile.total"
BUSY = {"utilization.gpu": "100", "clocks.current.sm": "1980", "clocks_event_reasons.active": "0x0000000000000000"}
BASICS = {name for name, *_ in GPU_FIELDS[:BASIC]} | {"reset"}  # which a launch asks for


class Plant(NamedTuple):
    """A recorded host, edited. found: the rule's id. remedy: part of it. info: only worth knowing."""

    machine: Machine
    found: str
    remedy: str
    info: bool = False


def cells(recording: str, gpu: int, **edits: str) -> Machine:
    return Machine(recording, gpu, {name.replace("__", "."): text for name, text in edits.items()})


def xid(recording: str, gpu: int, text: str) -> Machine:
    bus = f"{16 + 16 * gpu:02x}:00"
    return Machine(recording, gpu, lines=("usb 1-1: new device", f"NVRM: Xid (PCI:0000:{bus}): {text}"))


RESET = "nvidia-smi -r -i N"
PLANTS = {
    # memory. The A100's, the day before a row was remapped: stas00/ml-engineering, debug.md
    "a row to be remapped": Plant(
        cells("A100 that has counted", 2, remapped_rows__pending="Yes"), "gpu-rows-pending", RESET
    ),
    "a row to be remapped, H100": Plant(cells("H100", 7, remapped_rows__pending="Yes"), "gpu-rows-pending", RESET),
    "a row to be remapped, L4": Plant(cells("L4", 0, remapped_rows__pending="Yes"), "gpu-rows-pending", RESET),
    "no row left": Plant(cells("A100", 0, remapped_rows__failure="Yes"), "gpu-rows-failed", "RMA"),
    "no row left, H200": Plant(cells("H200", 0, remapped_rows__failure="Yes"), "gpu-rows-failed", "RMA"),
    "512 rows": Plant(cells("H100", 3, remapped_rows__uncorrectable="512"), "gpu-rows-failed", "RMA"),
    "uncorrected errors": Plant(Machine("V100", 5, {VOLATILE.format("uncorrected"): "2"}), "gpu-ecc", "replace"),
    "uncorrected errors, T4": Plant(Machine("T4", 0, {VOLATILE.format("uncorrected"): "1"}), "gpu-ecc", "replace"),
    "uncorrected errors, GB200": Plant(
        Machine("GB200", 3, {VOLATILE.format("uncorrected"): "8"}), "gpu-ecc", "replace"
    ),
    "corrected errors": Plant(
        Machine("H100", 1, {VOLATILE.format("corrected"): "50000000"}), "gpu-ecc-corrected", "grow"
    ),
    "SRAM, by count": Plant(Machine("A100", 6, {AGGREGATE: "5"}), "gpu-sram", "RMA"),
    "SRAM, as the driver says": Plant(Machine("H100", 6, {f"{AGGREGATE}.thresholdExceeded": "Yes"}), "gpu-sram", "RMA"),
    "a page to be retired": Plant(cells("V100", 1, retired_pages__pending="Yes"), "gpu-pages-pending", RESET),
    "a page to be retired, T4": Plant(cells("T4", 0, retired_pages__pending="Yes"), "gpu-pages-pending", RESET),
    "pages": Plant(cells("V100", 4, retired_pages__single_bit_ecc__count="60"), "gpu-pages", "replaced"),
    # what it asks for
    "a reset": Plant(cells("H100", 4, gpu_recovery_action="Reset"), "gpu-recovery", RESET),
    "a reboot": Plant(cells("GB200", 1, gpu_recovery_action="Node Reboot"), "gpu-recovery", "reboot"),
    "to be drained": Plant(cells("H200", 0, gpu_recovery_action="Drain and Reset"), "gpu-drain", RESET),
    "cells that require a reset": Plant(
        cells("A100", 2, ecc__mode="", memory__used="[GPU requires reset]"), "gpu-reset", RESET
    ),
    # heat, power, clocks
    "heat": Plant(cells("V100", 0, clocks_throttle_reasons__active="0x0000000000000048"), "gpu-throttled", "fans"),
    "heat, H100": Plant(cells("H100", 0, clocks_event_reasons__active="0x0000000000000020"), "gpu-throttled", "fans"),
    "power brake": Plant(cells("A100 of 40 GB", 3, clocks_event_reasons__active="0x88"), "gpu-throttled", "power"),
    "hot": Plant(cells("A100", 7, temperature__gpu="91"), "gpu-hot", "fans"),
    "hot, by what is left": Plant(
        cells("H100", 2, temperature__gpu="87", temperature__gpu__tlimit="0"), "gpu-hot", "inlet"
    ),
    "a lower power limit": Plant(
        cells("H100", 5, power__limit="400.00", enforced__power__limit="400.00"), "gpu-power-cap", "-pl"
    ),
    "a limit by another": Plant(cells("V100", 2, enforced__power__limit="150.00"), "gpu-power-cap", "-pl"),
    "busy and slow": Plant(Machine("H100", 6, {**BUSY, "clocks.current.sm": "345"}), "gpu-clock", "-rgc"),
    # links
    "half of its lanes": Plant(cells("A100", 4, pcie__link__width__current="8"), "gpu-pcie-width", "reseat"),
    "half of the lanes of a host": Plant(cells("H200", 0, pcie__link__width__current="8"), "gpu-pcie-widths", "riser"),
    "generation 1 under load": Plant(
        Machine("H100", 1, {**BUSY, "pcie.link.gen.current": "1"}), "gpu-pcie-gen", "BIOS"
    ),
    "an NVLink is down": Plant(Machine("A100", 3, active=11), "gpu-nvlink-down", "fabricmanager"),
    "no NVLink": Plant(Machine("GB200", 2, active=0), "gpu-nvlinks", "nvlink -s"),
    "CRC errors": Plant(Machine("A100", 2, errors={"CRC": 65535, "Replay": 148}), "gpu-nvlink-errors", "nvlink -e"),
    "recoveries": Plant(Machine("H100 NVL", 1, errors={"Recovery": 1}), "gpu-nvlink-errors", "bridge"),
    "no fabric manager": Plant(Machine("A100", 0, manager=False), "gpu-fabric-manager", "nvidia-fabricmanager"),
    # a GB300's, as fabric.state and fabric.status were published
    "the fabric is not ready": Plant(
        cells("GB200", 0, fabric__state="In Progress", fabric__status="N/A"), "gpu-fabric", "nvlsm"
    ),
    "the fabric is not started": Plant(
        cells("H100", 0, fabric__state="Not Started"), "gpu-fabric", "nvidia-fabricmanager"
    ),
    "the fabric has failed": Plant(cells("H100", 3, fabric__status="Insufficient Resources"), "gpu-fabric", "restart"),
    # modes
    "mode Prohibited": Plant(cells("L4", 0, compute_mode="Prohibited"), "gpu-prohibited", "-c DEFAULT"),
    "MIG on one": Plant(cells("A100", 5, mig__mode__current="Enabled"), "gpu-mig", "MIG"),
    "no persistence": Plant(cells("H100", 5, persistence_mode="Disabled"), "gpu-persistence", "nvidia-smi -pm 1", True),
    "memory that nobody holds": Plant(cells("V100", 6, memory__used="16000"), "gpu-held", "fuser"),
    # the kernel's log
    "Xid 48": Plant(
        xid("A100", 1, "48, pid=77, name=python3, An uncorrectable double bit error (DBE)"), "gpu-xid", "replace"
    ),
    "Xid 79": Plant(xid("V100", 7, "79, pid='<unknown>', GPU has fallen off the bus."), "gpu-xid", "power"),
    "Xid 119": Plant(
        xid("H100", 0, "119, pid=9, Timeout after 45s of waiting for RPC response from GPU0 GSP!"), "gpu-xid", RESET
    ),
    "Xid 154": Plant(
        xid("H200", 0, "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        "gpu-xid",
        "the line",
    ),
    "Xid 74": Plant(
        xid("H100", 6, "74, pid='<unknown>', NVLink: fatal error detected on link 4"), "gpu-xid", "fabricmanager"
    ),
    "Xid 63": Plant(
        xid("A100", 0, "63, pid=1896, Row Remapper: New row marked for remapping"), "gpu-xid-minor", RESET, True
    ),
    "Xid 13": Plant(
        xid("A100", 4, "13, pid='<unknown>', Graphics SM Warp Exception"), "gpu-xid-minor", "CUDA_LAUNCH_BLOCKING", True
    ),
}


def of_host(name: str, machine: Machine, reported: Mapping[str, Any]) -> dict[str, Any]:
    recorded, count = machine.recorded, machine.count
    driver = recorded["cells"]["driver_version"]
    kit = {"torch.cuda": recorded["cuda"], "cuda_toolkit": recorded["cuda"], "driver": driver}
    sent = decode(Probed, {"facts": dict(reported)})["facts"]
    facts = facts_of(name, kit, {"driver_gpus": count, "pci_gpus": count, "gpus": sent["gpus"]})
    for fact in ("gpu_processes", "nvlinks", "xids", "fabric_manager"):
        facts.pop(fact, None)
    return {**facts, **sent}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return {name: Machine(name).facts(tmp_path_factory.mktemp("healthy")) for name in RECORDINGS}


def fleet(machine: Machine, well: Mapping[str, Any], planted: Mapping[str, Any]) -> dict[str, tuple[Finding, ...]]:
    """What both verbs find where n3 is as planted."""
    hosts = tuple(Host(name, f"10.0.0.{n}", slots=machine.count) for n, name in enumerate(NAMES, 1))
    facts = {name: of_host(name, machine, planted if name == "n3" else well) for name in NAMES}
    known = {name: of_preflight(each) for name, each in facts.items()}
    plan = planned(*hosts, engine="torchrun", nproc_per_node=machine.count)
    return {"check": of_check(hosts, facts).findings, "launch": tuple(of_launch(plan, known))}


def of_preflight(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what of these a launch asks for."""
    basic = [{key: value for key, value in gpu.items() if key in BASICS} for gpu in facts["gpus"]]
    costly = ("nvlinks", "xids", "fabric_manager")
    return {**{key: value for key, value in facts.items() if key not in costly}, "gpus": basic}


def serious(findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if finding.severity != "info"]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_healthy_fleet_of_recordings_has_no_finding(name: str, healthy: dict[str, dict[str, Any]]) -> None:
    found = fleet(Machine(name), healthy[name], healthy[name])
    assert not serious(found["check"]) and not serious(found["launch"])
    off = RECORDINGS[name]["cells"].get("persistence_mode") == "Disabled"
    assert {each.id for each in found["check"] if each.id.startswith("gpu")} == ({"gpu-persistence"} if off else set())


@pytest.mark.parametrize("name", PLANTS)
def test_what_is_planted_is_found_alone_at_its_host_and_gpu(
    name: str, healthy: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    plant = PLANTS[name]
    machine = plant.machine
    found = fleet(machine, healthy[machine.recording], machine.facts(tmp_path))
    (finding,) = [each for each in found["check"] if each.severity != "info" or each.id == plant.found]
    assert (finding.id, finding.hosts) == (plant.found, ("n3",)) and plant.remedy in finding.remedy
    assert finding.severity == "info" if plant.info else finding.severity != "info"
    of_it = rf"GPU {machine.gpu}\b" if machine.count > 1 or "widths" not in finding.id else ""
    assert re.search(of_it if finding.id != "gpu-fabric-manager" else "fabric", finding.message), finding.message
    seen = {"gpu-reset", *(rule for *_, rule in GPU_FIELDS[:BASIC])}
    assert [each.id for each in serious(found["launch"])] == ([plant.found] if plant.found in seen else [])


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_launch_asks_once_for_the_basic_facts(name: str, healthy: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    reported = Machine(name).facts(tmp_path, health=False)
    asked = (tmp_path / "nvidia-smi.asked").read_text().split("\n")
    assert [each.partition("=")[0] for each in asked if each] == ["--query-gpu", "--query-compute-apps"]
    assert reported == {**of_preflight(healthy[name]), "gpu_processes": reported["gpu_processes"]}
    assert reported.keys() == {"gpus", "gpu_error", "gpu_processes"}


def test_basic_facts_are_there_where_a_field_is_not(tmp_path: Path) -> None:
    machine = Machine("V100")
    machine.recorded["unknown"].append("mig.mode.current")
    try:
        reported = machine.facts(tmp_path, health=False)
    finally:
        machine.recorded["unknown"].remove("mig.mode.current")
    assert len(reported["gpus"]) == 8 and reported["gpu_error"] is None
    assert reported["gpus"][0].keys() == {name for name, *_ in GPU_FIELDS[:BASE]} | {"reset"}


def test_a_launch_asks_by_the_names_that_the_driver_knows(
    healthy: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("H100")
    monkeypatch.setitem(machine.recorded, "unknown", [*machine.recorded["unknown"], "clocks_throttle_reasons.active"])
    reported = machine.facts(tmp_path, health=False)
    assert reported["gpus"] == of_preflight(healthy["H100"])["gpus"] and "slowed" in reported["gpus"][0]


@pytest.mark.parametrize("name", [name for name, plant in PLANTS.items() if plant.found == "gpu-fabric"])
def test_the_fabric_refuses_no_launch(name: str, healthy: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    machine = PLANTS[name].machine
    found = fleet(machine, healthy[machine.recording], machine.facts(tmp_path))
    (finding,) = [each for each in found["check"] if each.id == "gpu-fabric"]
    assert finding.severity == "warning" and "NVLink P2P does not work until" in finding.remedy
    assert not [each for each in found["launch"] if each.severity == "error"]


def test_no_remedy_ends_the_runs_of_others() -> None:
    remedies = {rule.id: rule.remedy for rule in RULES} | {str(number): xid.remedy for number, xid in XIDS.items()}
    remedies |= {hint.pattern: hint.remedy for hint in KERNEL} | {"another": explained(9999).remedy}
    harmful = {name: text for name, text in remedies.items() if re.search(r"restart nvidia|nvidia-smi -r|reset", text)}
    safe = r"while no|idle|nothing uses it|end what computes there|a reset does not mend"
    assert len(harmful) > 30 and not {name for name, text in harmful.items() if not re.search(safe, text)}


@pytest.mark.parametrize(
    ("slowed", "is_slow"),
    [("0x0000000000000000", True), ("0x4", False), ("0x5", False), ("0x1", False), ("[N/A]", False)],
)
@pytest.mark.parametrize("recording", ["T4", "L4", "H100"])
def test_a_clock_is_low_for_power_or_once_idle(recording: str, slowed: str, is_slow: bool, tmp_path: Path) -> None:
    edits = {**BUSY, "clocks.current.sm": "435"}
    edits.update(dict.fromkeys(("clocks_event_reasons.active", "clocks_throttle_reasons.active"), slowed))
    machine = Machine(recording, 0, edits)
    facts = machine.facts(tmp_path)
    found = fleet(machine, facts, facts)["check"]
    assert ("gpu-clock" in {each.id for each in found}) == is_slow


def test_the_tables_are_as_long_as_is_said() -> None:
    assert len(PLANTS) >= 40 and len(RECORDINGS) >= 10
    assert len({each["architecture"] for each in RECORDINGS.values()}) >= 5
    assert len({each["cells"]["driver_version"].partition(".")[0] for each in RECORDINGS.values()}) >= 5
    assert {plant.machine.recording for plant in PLANTS.values()} >= RECORDINGS.keys() - {"A100 PCIe"}


def test_an_unknown_field_costs_no_other(healthy: dict[str, dict[str, Any]]) -> None:
    old, new = healthy["V100"]["gpus"][1], healthy["H100"]["gpus"][1]
    assert old["slowed"] == new["slowed"] == 1 and "fabric" not in old and new["fabric"] == "Completed"
    assert (old["ecc_corrected_ever"], old["pages_corrected"], old["power_limit"]) == (3, 1, 250.0)
    assert "rows_pending" not in old and healthy["A100"]["gpus"][0]["rows_pending"] is False, "a query of its own"
    assert "fabric" not in healthy["T4"]["gpus"][0] and healthy["GB200"]["gpus"][0]["fabric"] == "Completed"
    assert healthy["GB200"]["nvlinks"][0] == {"gpu": 0, "active": 18}
    assert healthy["A100 PCIe"]["nvlinks"][1]["active"] == 0


@pytest.mark.parametrize(
    "cell", ["[N/A]", "N/A", "[Not Supported]", "Not Supported", "[Unknown Error]", "", "[GPU is lost]"]
)
def test_what_nvidia_smi_does_not_know_is_unknown(cell: str) -> None:
    assert {gpus.value_of(kind, cell) for _, kind, *_ in GPU_FIELDS} == {None}


@pytest.mark.parametrize("cell", ["[GPU requires reset]", "[N/A]", "[GPU is lost]"])
def test_a_sick_gpu_may_have_no_name(cell: str, healthy: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    machine = Machine("H100", 2, {"name": cell})
    reported = machine.facts(tmp_path)
    sent = decode(Probed, {"facts": reported})["facts"]
    assert sent["gpus"][2]["name"] is None and sent["gpus"][3]["name"]
    found = fleet(machine, healthy["H100"], reported)
    assert all(each.hosts == ("n3",) for each in found["check"])
    assert ("gpu-reset" in {each.id for each in found["launch"]}) == ("reset" in cell)


BETTER = "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def test_xids_before_a_reset_are_over_at_that_gpu(tmp_path: Path) -> None:
    at = "NVRM: Xid (PCI:0000:{}): {}".format
    before = (at("10:00", "48, pid=7, DBE"), at("10:00 GPU-I:05", "94, pid=7"), at("20:00", "79, off the bus"))
    assert [(each["bus"], each["xid"]) for each in Machine("H100", lines=before).xids(tmp_path)] == [
        ("0000:10:00", 48),
        ("0000:10:00", 94),
        ("0000:20:00", 79),
    ]
    after = (*before, at("10:00", BETTER), at("10:00", "31, MMU Fault"))
    found = Machine("H100", lines=after).xids(tmp_path)
    assert [(each["bus"], each["xid"]) for each in found] == [("0000:20:00", 79), ("0000:10:00", 31)]
    long = at("10:00 " + "x" * 41, "48")
    assert Machine("H100", lines=(long,)).xids(tmp_path) == []


def test_every_rule_of_the_table_is_one() -> None:
    assert {rule for *_, rule in GPU_FIELDS if rule} <= {rule.id for rule in RULES}


@pytest.mark.parametrize("runs", [True, False])
def test_the_fabric_manager_is_looked_for_where_there_are_nvswitches(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = b"nv-fabricmanage\n" if runs else b"sshd\n"
    monkeypatch.setattr(gpus, "read_file", lambda path: comm)
    assert gpus.fabric_manager() == {}, "no NVSwitch"
    monkeypatch.setattr(gpus.glob, "glob", lambda pattern: ["/proc/driver/nvidia-nvswitch/devices/0000:05:00.0"])
    monkeypatch.setattr(gpus, "FIRST_PID_SPACE", -1)
    assert gpus.fabric_manager() == {}, "a container sees only its own"
    monkeypatch.setattr(gpus, "FIRST_PID_SPACE", Path("/proc/self/ns/pid").stat().st_ino)
    assert gpus.fabric_manager() == {"fabric_manager": runs}
