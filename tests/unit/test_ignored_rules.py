"""`ignore:` in the inventory: rules that do not judge a host, shown as silenced."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.cli.verbs.check import screen
from fleet.errors import InventoryError
from fleet.inventory.hostfile import parse_hostfile
from fleet.inventory.write import render
from fleet.inventory.yaml_file import parse_yaml
from fleet.model import Host, Result
from fleet.ops.check import Checked, view_of
from fleet.ops.check import plan as check_plan
from fleet.ops.run.plan.findings import findings
from fleet.requests.hosts import Check
from fleet.rules.judge import judge, silenced
from tests.host_facts import BASE, facts_of
from tests.plans import planned
from tests.verdicts import of_launch

CAPPED = {"gpus": [{**gpu, "power_limit": 250.0} for gpu in BASE["gpus"]]}


def hosts(ignore: str | None) -> tuple[Host, ...]:
    return tuple(
        Host(name, name, slots=8, ignore=ignore if name == "gpu3" else None) for name in ("gpu1", "gpu2", "gpu3")
    )


@pytest.mark.parametrize(
    ("changes", "rule"),
    [(CAPPED, "gpu-power-cap"), ({"kernel": "5.4.0"}, "kernel"), ({"torch": None}, "module-missing")],
)
def test_an_ignored_rule_is_silenced_at_that_host_for_both_verbs(changes: dict[str, object], rule: str) -> None:
    for ignore in (None, rule, f"gpu-hot,{rule}"):
        chosen = hosts(ignore)
        facts = {host.name: facts_of(host.name, changes if host.name == "gpu3" else {}) for host in chosen}
        views = {host.name: view_of(host, facts[host.name], Check()) for host in chosen}
        launched = of_launch(planned(*chosen, engine="torchrun"), facts)
        for found in (judge(views), launched):
            assert (rule in {finding.id for finding in found}) == (ignore is None)
        quiet = tuple(silenced(views))
        assert [(each.id, each.hosts) for each in quiet] == ([] if ignore is None else [(rule, ("gpu3",))])
        results = tuple(Result(host.name, True, 0) for host in chosen)
        text = screen(Checked("check", results, 0, views=views, findings=tuple(judge(views)), silenced=quiet))
        assert ("silenced: " in text) == (ignore is not None)


def test_another_host_is_not_silenced() -> None:
    chosen = hosts("gpu-power-cap")
    views = {host.name: view_of(host, facts_of(host.name, CAPPED), Check()) for host in chosen}
    assert [finding.hosts for finding in judge(views)] == [("gpu1",), ("gpu2",)] or judge(views)[0].hosts == (
        "gpu1",
        "gpu2",
    )


RESET, RECOVERY = {"reset": True}, {"recovery": "Node Reboot"}


def of_gpus(**by_host: dict[str, object]) -> dict[str, dict[str, object]]:
    """Returns the facts of three hosts, in which GPU 0 is changed."""
    first, *rest = BASE["gpus"]
    return {
        host.name: facts_of(host.name, {"gpus": [{**first, **by_host.get(host.name, {})}, *rest]})
        for host in hosts(None)
    }


@pytest.mark.parametrize(
    ("facts", "ignore", "shown"),
    [
        (of_gpus(gpu3={**RESET, **RECOVERY}), None, {("gpu-reset", "gpu3")}),
        (of_gpus(gpu1=RESET, gpu3=RECOVERY), None, {("gpu-reset", "gpu1"), ("gpu-recovery", "gpu3")}),
        (of_gpus(gpu3={**RESET, **RECOVERY}), "gpu-reset", set()),
        (of_gpus(gpu3=RESET, gpu1=RECOVERY), "gpu-reset", {("gpu-recovery", "gpu1")}),
        (of_gpus(gpu3=RESET, gpu1={**RESET, **RECOVERY}), "gpu-reset", {("gpu-reset", "gpu1")}),
    ],
)
def test_a_cause_hides_its_signs_on_its_own_hosts_alone(
    facts: dict[str, dict[str, object]], ignore: str | None, shown: set[tuple[str, str]]
) -> None:
    views = {host.name: view_of(host, facts[host.name], Check()) for host in hosts(ignore)}
    found = {(each.id, *each.hosts) for each in judge(views) if each.severity == "error"}
    assert found == shown


def test_a_warning_hides_no_error() -> None:
    """GPU 5 is no rank's, GPU 0 is one's."""
    gpus = [{**gpu, **{0: RECOVERY, 5: RESET}.get(gpu["index"], {})} for gpu in BASE["gpus"]]
    host = Host("gpu1", "gpu1", slots=8, devices=(0, 1))
    found = judge({"gpu1": view_of(host, facts_of("gpu1", {"gpus": gpus}), Check())})
    assert {(each.id, each.severity) for each in found} >= {("gpu-recovery", "error"), ("gpu-reset", "warning")}


def test_it_is_written_as_a_list_or_as_text() -> None:
    some = "gpu1: {}\n  gpu2: {ignore: [gpu-hot, gpu-ecc]}\n  gpu3: {ignore: null}\n"
    text = f"defaults: {{ignore: [kernel]}}\nhosts:\n  {some}"
    inventory = parse_yaml(text, "fleet.yaml")
    assert [host.ignore for host in inventory.hosts] == ["kernel", "gpu-hot,gpu-ecc", None]
    assert parse_yaml(render(inventory, (), {}), "fleet.yaml").hosts == inventory.hosts
    assert parse_hostfile("gpu1 slots=8 ignore=kernel,os\n", "hostfile").hosts[0].ignore == "kernel,os"


@pytest.mark.parametrize("value", ["[Kernel]", "[1]", "{a: b}", "''", "'a b'"])
def test_what_is_no_name_of_a_rule_is_refused_with_its_line(value: str) -> None:
    with pytest.raises(InventoryError) as refused:
        parse_yaml(f"hosts:\n  gpu1: {{ignore: {value}}}\n", "fleet.yaml")
    assert "fleet.yaml:2" in str(refused.value.where)


def test_a_rule_that_is_none_is_named_with_the_nearest() -> None:
    inventory = parse_yaml("hosts:\n  gpu1: {ignore: [gpu-power-cup]}\n", "fleet.yaml")
    with pytest.raises(InventoryError) as refused:
        check_plan(inventory, Check())
    assert refused.value.host == "gpu1" and "gpu-power-cap" in str(refused.value.hint)


VITAL = ["live-run", "code-mixed", "data-mixed", "master", "way-to-master", "python-missing", "step-needed"]


@pytest.mark.parametrize("rule", [*VITAL, "step-port", "hangs-gpus", "hangs-disk-home", "script-differs", "ways"])
def test_what_protects_runs_and_code_cannot_be_ignored(rule: str) -> None:
    inventory = parse_yaml(f"hosts:\n  gpu1: {{ignore: [gpu-hot, {rule}]}}\n", "fleet.yaml")
    with pytest.raises(InventoryError) as refused:
        check_plan(inventory, Check())
    assert f"{rule} protects runs" in str(refused.value) and refused.value.host == "gpu1"
    assert "take it out of 'ignore'" in str(refused.value.hint)


def test_a_launch_tells_in_one_line_what_was_silenced() -> None:
    heard: list[Any] = []
    chosen = hosts("gpu-power-cap,kernel")
    changed = {**CAPPED, "kernel": "5.4.0"}
    facts = {host.name: facts_of(host.name, changed if host.name == "gpu3" else {}) for host in chosen}
    findings(planned(*chosen, engine="torchrun"), facts, emit=heard.append)
    assert [(each.level, each.message) for each in heard] == [
        ("warning", "silenced: 2 findings (gpu-power-cap, kernel)")
    ]
    findings(planned(*hosts(None), engine="torchrun"), facts, emit=heard.append)
    assert len(heard) == 1
