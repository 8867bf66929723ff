"""What checks find of GPUs is kept on the head: what came back, grew or moved, and which hosts `-x @unfit` leaves out;
checks by chance, held to a model of which host is unfit."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fleet.cli.inventory import hosts_of, unfit_of
from fleet.codec import plain
from fleet.ops import health
from fleet.rules.history import ID, MOST_NAMES, Kept, Past, recalled, unfit, updated, with_past
from fleet.rules.judge import applied, judge
from fleet.rules.rule import Want
from fleet.rules.seen import AT_WORK, CELLS, NVLINKS, OF_HOST, RULES_OF_HEALTH
from fleet.rules.view import view
from tests import stubs
from tests.host_facts import facts_of
from tests.in_process import Outcome, command_line
from tests.scripted import Scripted

Facts = dict[str, Any]
DAY, FIRST = 86_400.0, 1_762_160_520.0  # 3 Nov 2025


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "fleet.yaml").write_text("hosts: [a, b, c]\n")
    return tmp_path


def host(name: str, *edits: tuple[int, str, Any], only: int = 8, pci_gpus: int | None = None) -> Facts:
    """Returns the facts of a host with GPUs of its own. edits: (GPU, field, value)."""
    facts = facts_of(name, {"pci_gpus": pci_gpus or only, "driver_gpus": only})
    facts["network"]["advertised"] = None
    facts["gpus"] = facts["gpus"][:only]
    for gpu in facts["gpus"]:
        gpu["uuid"], gpu["serial"] = f"GPU-{name}-{gpu['index']}", f"13200{gpu['index']}"
    for gpu, field, value in edits:
        facts["gpus"][gpu][field] = value
    return facts


class Days:
    """Checks, each on the day after the one before."""

    def __init__(self) -> None:
        self.kept, self.now = list[Kept](), FIRST

    def check(self, *facts: Facts, scope: str = "/fleet.yaml") -> dict[str, str]:
        """Returns rule -> message."""
        known = {each["hostname"]: copy.deepcopy(each) for each in facts}
        for name, before in recalled(self.kept, known, scope).items():
            known[name]["before"] = before
        views = {name: view(each, Want(name)) for name, each in known.items()}
        self.kept = updated(self.kept, views, applied(views), scope, self.now)
        self.now += DAY
        return {each.id: each.message for each in with_past(judge(views), views)}

    def unfit(self, scope: str = "/fleet.yaml") -> list[str]:
        return [*unfit(self.kept, scope)]

    def open(self, host: str, scope: str = "/fleet.yaml") -> set[str]:
        """Returns the rules that no later check has found gone there."""
        here = [each for each in self.kept if each.hosts.get(scope) == host]
        return {rule for each in here for rule, past in each.found.items() if past.open}


BAD = (2, "recovery", "Reset")  # an error
WELL = (2, "recovery", "None")
ROWS = (5, "rows_pending", True)  # a warning


def test_what_is_still_there_has_its_date_and_what_comes_back_is_the_same_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    days, others = Days(), (host("b"), host("c"))
    assert days.check(host("a", ROWS), *others)["gpu-rows-pending"].endswith("the next reset replaces")
    assert "; GPU 5 so since 3 Nov" in days.check(host("a", ROWS), *others)["gpu-rows-pending"]
    assert "gpu-rows-pending" not in days.check(host("a"), *others)
    again = days.check(host("a", ROWS), *others)["gpu-rows-pending"]
    assert "; GPU 5 the same as on 4 Nov" in again and "and well in between (serial 132005)" in again
    assert "2 times so far" in days.check(host("a", ROWS), *others)["gpu-rows-pending"]


def test_error_counts_grow() -> None:
    days, others = Days(), (host("b"), host("c"))
    days.check(host("a", (1, "ecc_corrected_ever", 100)), *others)
    assert "gpu-errors-corrected" not in days.check(host("a", (1, "ecc_corrected_ever", 100)), *others)
    found = days.check(host("a", (1, "ecc_corrected_ever", 112), (1, "rows_uncorrected", 1)), *others)
    assert "a: GPU 1 has 12 more corrected memory errors since 3 Nov" in found["gpu-errors-corrected"]
    assert "a: GPU 1 has 1 more rows remapped for uncorrected errors since 3 Nov" in found["gpu-errors-grow"]
    unknown = days.check(host("a", (1, "ecc_corrected_ever", None), (1, "rows_uncorrected", 1)), *others)
    assert "gpu-errors-corrected" not in unknown and "gpu-errors-grow" in unknown
    assert "gpu-errors-grow" not in days.check(host("a"), *others), "they were reset"
    assert "since 7 Nov" in days.check(host("a", (1, "rows_uncorrected", 3)), *others)["gpu-errors-grow"]


def test_a_gpu_that_moves_is_known_and_takes_along_what_it_had() -> None:
    days = Days()
    days.check(host("a", BAD), host("b"), host("c"))
    assert days.unfit() == ["a"]
    swapped = [(2, "uuid", "GPU-a-2"), (2, "serial", "132002"), BAD]
    found = days.check(host("a", (2, "uuid", "GPU-b-2"), WELL), host("b", *swapped), host("c"))
    assert "b: GPU 2 was in a until 3 Nov" in found["gpu-moved"] and "where it had gpu-recovery" in found["gpu-moved"]
    assert days.unfit() == ["b"]
    assert "gpu-moved" not in days.check(host("a", (2, "uuid", "GPU-b-2"), WELL), host("b", *swapped), host("c"))


def test_a_gpu_that_was_taken_out_makes_no_host_unfit() -> None:
    days, others = Days(), (host("b"), host("c"))
    days.check(host("a", BAD), *others)
    days.check(host("a", (2, "uuid", "GPU-new")), *others)
    assert days.unfit() == []


@pytest.mark.parametrize(
    ("second", "still"),
    [
        (host("a", WELL), False),
        (host("a", (2, "recovery", None)), True),  # nvidia-smi does not report it any more
        (host("a", only=2, pci_gpus=8), True),  # off the bus
        (host("a", only=2), False),  # taken out
        (None, True),  # it did not answer
    ],
)
def test_what_is_not_known_stays_as_it_was(second: Facts | None, still: bool) -> None:
    days, others = Days(), (host("b"), host("c"))
    days.check(host("a", BAD), *others)
    days.check(*others, *([second] if second else []))
    assert days.unfit() == (["a"] if still else [])


def test_a_gpu_whose_id_two_hosts_report_is_of_neither() -> None:
    days = Days()
    twin = (2, "uuid", "GPU-b-2")
    days.check(host("a", BAD, twin), host("b"), host("c"))
    assert "GPU-b-2" not in {each.id for each in days.kept} and days.unfit() == ["a"], "the host itself is unfit"
    assert "gpu-moved" not in days.check(host("a", WELL, twin), host("b"), host("c")) and days.unfit() == []


def edited(name: str, *edits: tuple[int, str, Any], **facts: Any) -> Facts:
    """Returns the facts of a host, of which some are others; None for what is not known."""
    found = {**host(name, *edits), "gpu_error": None, **facts}
    return {name: value for name, value in found.items() if value is not None or name not in facts}


RATES = {"tflops": 260.0, "gbytes": 1500.0}
EVERY = [{"gpu": n, **RATES} for n in range(8)]
SLOW = [{**each, "tflops": 130.0} if each["gpu"] == 3 else each for each in EVERY]
LINKS = [{"gpu": n, "active": 12, "replay": 0, "recovery": 0, "crc": 0} for n in range(8)]
BROKEN = [{**each, "crc": 5} if each["gpu"] == 3 else each for each in LINKS]
CLOCK = ((2, "use", 100), (2, "clock", 345), (2, "clock_max", 1410))
XID = {"bus": "0000:07:00.0", "count": 1, "ago": 60.0, "text": ""}
NONE = {"gpus": [], "driver": None, "driver_gpus": 0}


@pytest.mark.parametrize(
    ("rule", "first", "second", "gone"),
    [
        # a GPU that was not measured, or of which there are too few peers
        ("bench-slow", edited("a", speeds=SLOW), edited("a", speeds=EVERY), True),
        ("bench-slow", edited("a", speeds=SLOW), edited("a", speeds=EVERY[:3]), False),
        ("bench-slow", edited("a", speeds=SLOW), edited("a", speeds=EVERY[3:4]), False),
        ("bench-slow", edited("a", speeds=SLOW), edited("a", speeds=[*EVERY[:3], {"gpu": 3, "error": "x"}]), False),
        ("bench-slow", edited("a", speeds=SLOW), edited("a"), False),
        ("bench-failed", edited("a", speeds=[{"gpu": 3, "error": "x"}]), edited("a", speeds=EVERY[3:4]), True),
        ("bench-failed", edited("a", speeds=[{"gpu": 3, "error": "x"}]), edited("a", speeds=EVERY[4:]), False),
        ("bench-failed", edited("a", speeds=[{"gpu": None, "error": "x"}]), edited("a", speeds=EVERY[1:]), False),
        ("bench-failed", edited("a", speeds=[{"gpu": None, "error": "x"}]), edited("a", speeds=EVERY), True),
        ("gpu-nvlink-errors", edited("a", nvlinks=BROKEN), edited("a", nvlinks=LINKS), True),
        ("gpu-nvlink-errors", edited("a", nvlinks=BROKEN), edited("a", nvlinks=LINKS[:3]), False),
        ("gpu-nvlink-errors", edited("a", nvlinks=BROKEN), edited("a", nvlinks=[{"gpu": 3, "active": 12}]), False),
        # all cells of a rule
        ("gpu-rows-failed", edited("a", (2, "rows_failed", True)), edited("a", (2, "rows_failed", None)), False),
        ("gpu-rows-failed", edited("a", (2, "rows_failed", True)), edited("a", (2, "rows_failed", False)), True),
        # a clock of a GPU that does not work, or is at its power cap
        ("gpu-clock", edited("a", *CLOCK, (2, "slowed", 0)), edited("a", *CLOCK, (2, "slowed", 1)), False),
        ("gpu-clock", edited("a", *CLOCK, (2, "slowed", 0)), edited("a", *CLOCK, (2, "slowed", 4)), False),
        (
            "gpu-clock",
            edited("a", *CLOCK, (2, "slowed", 0)),
            edited("a", *CLOCK, (2, "clock", 1400), (2, "slowed", 0)),
            True,
        ),
        # a GPU without an id is kept at its host
        ("gpu-recovery", edited("a", BAD, (2, "uuid", None)), edited("a", (2, "recovery", None)), False),
        ("gpu-recovery", edited("a", BAD, (2, "uuid", None)), edited("a", WELL), True),
        ("gpu-recovery", edited("a", BAD, (2, "uuid", None)), host("a", only=2, pci_gpus=8), False),
        # one whose id cannot be read any more is not one that was taken out
        ("gpu-recovery", edited("a", BAD), edited("a", (2, "uuid", None), (2, "recovery", None)), False),
        # of the host
        ("gpu-driver-missing", edited("a") | NONE, edited("a"), True),
        ("gpu-driver-missing", edited("a") | NONE, {**edited("a", torch=None), **NONE}, False),
        ("gpu-driver-missing", edited("a") | NONE, edited("a") | NONE | {"torch": None}, False),
        ("gpu-driver-missing", edited("a") | NONE, edited("a") | NONE | {"torch": {"cuda": None}}, False),
        ("gpu-unusable", edited("a", gpu_error="mismatch", gpus=None), edited("a"), True),
        ("gpu-unusable", edited("a", gpu_error="mismatch", gpus=None), edited("a", gpus=[]), False),  # no nvidia-smi
    ],
)
def test_what_a_check_did_not_see_is_not_gone(rule: str, first: Facts, second: Facts, gone: bool) -> None:
    days = Days()
    days.check(first)
    assert rule in days.open("a")
    days.check(second)
    assert (rule not in days.open("a")) is gone


def test_which_of_unlike_gpus_is_slow_is_not_known_so_none_is_well() -> None:
    days = Days()
    days.check(edited("a", speeds=SLOW))
    days.check(edited("a", speeds=[{**each, "tflops": 260.0 if each["gpu"] < 4 else 130.0} for each in EVERY]))
    assert days.open("a") >= {"bench-slow", "bench-unlike"}


def test_hosts_of_three_models_have_no_peers() -> None:
    days = Days()
    slow = [edited(name, speeds=SLOW[3:4] if name == "a" else EVERY[3:4]) for name in "abc"]
    days.check(*slow)
    assert "bench-slow" in days.open("a")
    mended = [edited(name, (3, "name", f"model {name}"), speeds=EVERY[3:4]) for name in "abc"]
    days.check(*mended)
    assert "bench-slow" in days.open("a")


def test_each_rule_of_health_has_what_must_be_known() -> None:
    for rule in RULES_OF_HEALTH:
        assert (rule in OF_HOST) + (rule in {*CELLS, *NVLINKS}) + rule.startswith("bench-") == 1, rule
    assert {*AT_WORK} <= {*CELLS}


def test_xids_of_programs_are_no_errors_of_a_gpu_that_grow() -> None:
    days = Days()
    bus = host("a")["gpus"][3]["bus"]
    days.check(edited("a", xids=[]))
    own = [{**XID, "bus": bus, "xid": number} for number in (13, 31, 43, 45)]
    assert "gpu-errors-grow" not in days.check(edited("a", xids=own))
    grown = days.check(edited("a", xids=[*own, {**XID, "bus": bus, "xid": 48}]))["gpu-errors-grow"]
    assert "GPU 3 has 1 more Xid errors" in grown


def test_a_sign_of_another_error_is_not_gone_and_slots_are_no_health() -> None:
    days = Days()
    days.check(host("a", BAD))
    days.check(host("a", BAD, (2, "reset", True)))
    assert days.open("a") == {"gpu-recovery", "gpu-reset"}
    views = {"b": view(host("b"), Want("b", 9))}
    assert "gpu-slots" in {each.id for each in applied(views)}
    assert unfit(updated([], views, applied(views), "/f", 1.0), "/f") == {}


def test_names_in_many_inventories_are_merged_before_they_are_cut() -> None:
    days = Days()
    for n in range(MOST_NAMES):
        days.check(host("a", BAD), scope=f"/{n}")
    for _ in range(2):
        days.check(host("a", BAD), scope="/3")
    assert days.unfit("/0") == ["a"]


def test_hosts_of_one_name_in_two_inventories_are_two() -> None:
    days = Days()
    days.check(host("a", BAD), scope="/one.yaml")
    assert (days.unfit("/one.yaml"), days.unfit("/other.yaml")) == (["a"], [])
    renamed = host("a", BAD) | {"hostname": "x"}
    assert "gpu-moved" not in days.check(renamed, scope="/other.yaml"), "another name for it"
    assert (days.unfit("/one.yaml"), days.unfit("/other.yaml")) == (["a"], ["x"])
    days.check(host("a", WELL), scope="/one.yaml")
    assert days.unfit("/other.yaml") == [], "it is the same GPU"


@pytest.mark.parametrize("seed", range(60))
def test_checks_by_chance_know_which_hosts_are_unfit(seed: int) -> None:
    """GPUs break, are mended, are not known, change places with others; hosts do not answer, or are not checked."""
    draw, days = Random(seed), Days()
    names = ["a", "b", "c", "d"]
    at = {(name, index): f"GPU-{name}-{index}" for name in names for index in range(3)}
    broken, believed, places = set[str](), set[str](), dict[str, str]()
    for _ in range(12):
        for id in at.values():
            if draw.random() < 0.15:
                broken ^= {id}
        if draw.random() < 0.3:
            one, other = draw.sample(sorted(at), 2)
            at[one], at[other] = at[other], at[one]
        seen = draw.sample(names, draw.randint(1, 4))
        facts, known = list[Facts](), set[str]()
        for name in names:
            if name not in seen:
                continue
            edits = list[tuple[int, str, Any]]()
            for index in range(3):
                id = at[name, index]
                edits.append((index, "uuid", id))
                state = ("Reset" if id in broken else "None") if draw.random() < 0.7 else None
                edits.append((index, "recovery", state))
                known |= {id} if state else set()
            facts.append(host(name, *edits, only=3))
        believed = (believed - known) | (known & broken)
        days.check(*facts)
        for (name, _), id in at.items():
            if name in seen:
                places[id] = name
            elif places.get(id) in seen:
                places.pop(id)  # it was taken out there, and is elsewhere
        assert days.unfit() == sorted({places[id] for id in believed if id in places}), seed


# -- on the command line -------------------------------------------------------------------------------------------
def fleet(*words: str, nodes: Mapping[str, Facts] = {}) -> Outcome:
    hosts_of.cache_clear()  # another process
    unfit_of.cache_clear()
    return command_line(words, Scripted({name: {"probe": [{"facts": facts}]} for name, facts in nodes.items()}))


def check(*edits: tuple[int, str, Any]) -> Outcome:
    return fleet("check", nodes={"a": host("a", *edits), "b": host("b"), "c": host("c")})


def test_unfit_hosts_are_left_out_until_a_check_finds_them_well(here: Path) -> None:
    def left() -> list[str]:
        return fleet("hosts", "-x", "@unfit", "--format", "nodeset").out.split()

    assert left() == ["a,b,c"], "none is known"
    assert check(BAD).code == 123 and left() == ["b,c"]
    assert fleet("check", "-x", "@unfit", nodes={"b": host("b"), "c": host("c")}).code == 0 and left() == ["b,c"]
    assert fleet("hosts", "-w", "@unfit", "--format", "nodeset").out.split() == ["a"]
    (here / "fleet.yaml").write_text("hosts: [b, c]\n")
    assert left() == ["b,c"], "the unfit host is not in the inventory any more"
    (here / "fleet.yaml").write_text("hosts: [a, b, c]\ngroups: {unfit: c}\n")
    assert left() == ["a,b"], "a group of that name is the group"
    (here / "fleet.yaml").write_text("hosts: [a, b, c]\n")
    assert check(WELL).code == 0 and left() == ["a,b,c"]


def test_a_host_is_fit_in_spite_of_what_it_ignores(here: Path) -> None:
    (here / "fleet.yaml").write_text("hosts: {a: {ignore: [gpu-recovery]}, b: {}, c: {}}\n")
    check(BAD)
    for _ in range(2):
        assert fleet("hosts", "-x", "@unfit", "--format", "nodeset").out.split() == ["a,b,c"]
        check(BAD)
    (here / "fleet.yaml").write_text("hosts: [a, b, c]\n")
    assert fleet("hosts", "-x", "@unfit", "--format", "nodeset").out.split() == ["b,c"], "it is still there"


def test_what_another_version_found_is_left_to_it(here: Path) -> None:
    check(BAD)
    file = here / "home/.fleet/health/kept.json"
    kept = json.loads(file.read_text())
    for each in kept:
        each["found"]["gpu-of-tomorrow"] = plain(Past("error", 1.0, 1.0))
    file.write_text(json.dumps(kept))
    assert check(WELL).code == 0
    assert fleet("hosts", "-x", "@unfit", "--format", "nodeset").out.split() == ["a,b,c"]
    assert all(each["found"]["gpu-of-tomorrow"]["open"] for each in json.loads(file.read_text()) if each["found"])


def test_a_job_of_slurm_excludes_them_by_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol = "echo 'ClusterName             = c1'"
    stubs.put(here, {"scontrol": scontrol, "sinfo": "printf 'n1\\nn2\\nn9\\n'"}, monkeypatch)
    assert health.scope_of("slurm:17") == "slurm:c1"
    days = Days()
    days.check(host("n1", BAD), host("n2"), host("gone", BAD), scope=health.scope_of("slurm:17"))
    days.check(host("n9", BAD), scope="slurm:c2")
    health.keep(lambda kept: days.kept)
    line = ("launch", "--on", "slurm", "--nodes", "2", "--dry-run", "-x")
    (here / "train.py").write_text("")
    shown = fleet(*line, "n[7,9],@unfit", "train.py")
    assert shown.code == 0 and "#SBATCH --exclude=n[7,9],n1\n" in shown.out, shown.err
    assert "#SBATCH --exclude=n9\n" in fleet(*line, "@unfit", "--clusters=c2", "train.py").out
    monkeypatch.setenv("SLURM_CLUSTERS", "c1,c2")
    shown = fleet(*line, "@unfit", "train.py")
    assert "--exclude" not in shown.out and "the names of the nodes of slurm are not known" in " ".join(
        shown.err.split()
    )
    monkeypatch.delenv("SLURM_CLUSTERS")
    stubs.put(here, {"sinfo": "exit 1"}, monkeypatch)
    shown = fleet(*line, "@unfit", "train.py")
    assert shown.code == 0 and "--exclude" not in shown.out and "are not known" in " ".join(shown.err.split())
    health.keep(lambda kept: [replace(each, found={}) for each in kept])
    assert "--exclude" not in fleet(*line, "@unfit", "train.py").out, "none is"
    (here / "home/.fleet/health/kept.json").write_text("[")
    assert "'fleet --on slurm check' writes it again" in " ".join(fleet(*line, "@unfit", "train.py").err.split())


def test_it_is_the_owners_alone_and_small(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(BAD)
    folder = here / "home/.fleet/health"
    modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.iterdir()]}
    assert modes == {"health": 0o700, ".lock": 0o600, "kept.json": 0o600}
    monkeypatch.setattr(health, "MOST_KEPT", 5)
    check(BAD)
    fleet("check", "-x", "a", nodes={"b": host("b"), "c": host("c")})
    left = json.loads((folder / "kept.json").read_text())
    assert len(left) == 5 and fleet("hosts", "-w", "@unfit", "--format", "nodeset").out.split() == ["a"]


ENTRY = plain(Kept("GPU-1", None, {"/f": "a"}, 1.0, 1.0, {}, {"gpu-ecc": Past("error", 1.0, 1.0)}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "cannot be read"),
        ("[" * 20_000, "cannot be read: it is nested too deep"),
        ('{"a": 1}', "holds no list"),
        ("[1]", "1 of 1 entries cannot be read"),
        (json.dumps([{**ENTRY, "hosts": 3}, ENTRY]), "1 of 2 entries cannot be read"),
        (json.dumps([{**ENTRY, "at": float("inf")}]), "1 of 1 entries cannot be read"),
        (json.dumps([{**ENTRY, "since": 1e18}]), "1 of 1 entries cannot be read"),
        (json.dumps([{**ENTRY, "found": {"gpu-ecc": plain(Past("error", 1e18, 1.0))}}]), "1 of 1 entries"),
        (json.dumps([{**ENTRY, "found": {"gpu-ecc": {"severity": "dire"}}}]), "1 of 1 entries cannot be read"),
    ],
)
def test_a_damaged_file_is_said_and_written_anew(text: str, why: str, here: Path) -> None:
    check(BAD)
    file = here / "home/.fleet/health/kept.json"
    file.write_text(text)
    refused = fleet("hosts", "-x", "@unfit")
    assert (
        refused.code == 121 and why in " ".join(refused.err.split()) and "'fleet check' writes it again" in refused.err
    )
    assert why in " ".join(check(BAD).err.split())
    assert fleet("hosts", "-x", "@unfit", "--format", "nodeset").out.split() == ["b,c"]


def test_a_home_that_cannot_be_written_costs_no_check(here: Path) -> None:
    (here / "home/.fleet").write_text("a file")
    done = check(BAD)
    assert (
        done.code == 123 and "what was found is not kept for the next check" in done.err and "gpu-recovery" in done.out
    )


@pytest.mark.parametrize("id", ["../../x", "GPU-", "GPU-a/b", "GPU-" + "a" * 65, "GPU-a\n", "", "u0"])
def test_what_is_no_id_of_a_gpu_names_none(id: str) -> None:
    assert not ID.fullmatch(id)
    days = Days()
    days.check(host("a", (2, "uuid", id), BAD), host("b"), host("c"))
    assert id not in {each.id for each in days.kept if each.id} and days.unfit() == ["a"]


def test_what_is_kept_survives_json() -> None:
    days = Days()
    days.check(host("a", BAD, ROWS), host("b"), host("c"))
    health.keep(lambda kept: days.kept)
    kept, wrong = health.load()
    assert sorted(kept, key=lambda each: each.id) == sorted(days.kept, key=lambda each: each.id) and not wrong
    assert replace(days.kept[0], at=0.0) != days.kept[0]
