"""What preflight's facts mean: each finding with its remedy, folded, and no echo of one fault on every node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host
from fleet.ops.run.plan.findings import refuse, unsent
from tests.plans import Plan, planned
from tests.verdicts import of_check, of_late, of_launch

TORCH = {"version": "2.5", "cuda": None, "hip": None, "nccl": None}
WORKDIR = {"path": "/w", "exists": True, "writable": True, "free": 1 << 40, "total": 1 << 41}
HOSTS = tuple(Host(f"n{i}", f"10.0.0.{i}", slots=2) for i in range(3))


def plan_for(engine: str = "torchrun", hosts: tuple[Host, ...] = HOSTS) -> Plan:
    return planned(*hosts, engine=engine)


def good(**changed: Any) -> dict[str, Any]:
    return {
        "python": {"path": "/py", "version": "3.11.2", "error": None},
        "torch": TORCH,
        "deepspeed": {"version": "0.16"},
        "activate": None,
        "disks": {"workdir": WORKDIR},
        "script": {"path": "/w/t.py", "exists": True, "sha256": "a" * 64, "executable": True},
        "code": {"folder": "/w", "state": "/.w.fleet-sync", "digest": "a" * 64, "half": False, "busy": None},
        "gpus": [],
        "gpu_error": None,
        "gpu_processes": [],
        "network": {"error": None},
        "port": {"ok": True},
        "timed_out": [],
        "failed": {},
        **changed,
    }


def findings(
    plan: Plan | None = None, complete: bool = True, **by_host: dict[str, Any]
) -> list[tuple[str, tuple[str, ...], str]]:
    raw = {host.name: by_host.get(host.name, good()) for host in (plan or plan_for()).hosts}
    return [(f.severity, f.hosts, f.message) for f in of_launch(plan or plan_for(), raw, complete=complete)]


def test_all_well_finds_nothing() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"python": {"path": None, "error": "/opt/py: no such program"}}, "n2: the training interpreter: /opt/py"),
        ({"torch": None}, "torch is not installed for /py"),
        ({"activate": "bash: x: not found"}, "the activate line: it failed: bash: x"),
        ({"disks": {"workdir": {**WORKDIR, "exists": False}}}, "the folder /w does not exist"),
        ({"script": {"path": "/w/t.py", "exists": False}}, "the script /w/t.py does not exist"),
        ({"script": {"path": "/bin", "exists": False}, "script_folder": "/bin"}, "the script /bin is a folder"),
        ({"script": {"path": "/w/t.py", "exists": True, "sha256": "b" * 64}}, "the script's content differs"),
        ({"python": {"path": "/py", "version": "3.9.1", "error": None}}, "n2 has Python 3.9, the 2 others 3.11"),
        ({"torch": {**TORCH, "version": "2.4"}}, "n2 has torch 2.4, the 2 others 2.5"),
        (
            {"code": {"folder": "/w", "busy": "head (pid 7)", "half": False}},
            "a sync to /w is under way, from head (pid 7)",
        ),
        ({"code": {"folder": "/w", "busy": None, "half": True}}, "was interrupted while it put files in place"),
        ({"code": {"digest": "b" * 64}}, "the code that was synced differs: sha256 bbbb"),
        (
            {"data": {"folder": "/w/set", "busy": "head (pid 7)"}},
            "data is being delivered to /w/set, from head (pid 7)",
        ),
        ({"data": {"folder": "/w/set", "busy": None}}, "a delivery of data to /w/set was cut short"),
        ({"timed_out": ["files"]}, "preflight of its files: no answer in time"),
        ({"builds": [{"path": "/c/py311_cpu/cpu_adam/lock", "sure": True}]}, "left /c/py311_cpu/cpu_adam/lock: a rank"),
        ({"gpu_error": "no devices"}, "nvidia-smi: no devices"),
    ],
)
def test_each_fault_is_one_error_with_a_remedy_on_its_host(changed: dict[str, Any], said: str) -> None:
    found = of_launch(plan_for(), {"n0": good(), "n1": good(), "n2": good(**changed)})
    assert [(f.severity, f.hosts) for f in found] == [("error", ("n2",))]
    assert said in found[0].message and found[0].remedy


def test_a_half_switched_tree_hides_what_it_makes_look_wrong() -> None:
    half = {"code": {"folder": "/w", "half": True}, "script": {"path": "/w/t.py", "exists": False}}
    assert len(findings(n1=good(**half))) == 1


def test_code_that_came_another_way_is_a_warning() -> None:
    assert findings(n1=good(code=None)) == [
        ("warning", ("n1",), "n1: the code there did not come by 'fleet sync', elsewhere it did")
    ]
    assert findings(n0=good(code=None), n1=good(code=None), n2=good(code=None)) == []
    # one that cannot be looked at (another user's) says nothing
    assert findings(n1=good(code={"folder": "/w", "digest": None, "half": False, "busy": None})) == []


def test_the_same_fault_on_all_is_said_once() -> None:
    bad = good(disks={"workdir": {**WORKDIR, "exists": False}})
    assert findings(n0=bad, n1=bad, n2=bad) == [("error", ("n0", "n1", "n2"), "n[0-2]: the folder /w does not exist")]


def test_a_busy_port_names_host_and_pid_and_silences_the_echo() -> None:
    busy = {
        "ok": False,
        "error": "port 29500: Address already in use",
        "hint": "'fleet kill-port 29500'",
        "holder": {"pid": 4711, "command": "python other.py", "run_id": "other-1"},
    }
    echo = {"ok": False, "error": "something else answers there", "hint": None}
    found = of_launch(plan_for(), {"n0": good(port=busy), "n1": good(port=echo), "n2": good(port=echo)})
    assert len(found) == 1 and found[0].hosts == ("n0",) and "kill-port" in found[0].remedy
    assert "pid 4711 (python other.py, run other-1)" in found[0].message


def test_when_a_host_is_unreachable_that_nobody_met_says_nothing() -> None:
    lonely = good(port={"ok": False, "error": "no answer"})
    assert findings(complete=False, n1=lonely) == []
    assert findings(n1=lonely) != []


def test_the_command_engine_needs_no_python_but_a_program() -> None:
    plan = plan_for("command")
    assert findings(plan, n0=good(python={"path": None, "error": "none"})) == []
    bare = good(script={"path": "/w/t", "exists": True, "executable": False})
    assert findings(plan, n1=bare)[0][2] == "n1: /w/t is not executable"
    mute = good(script={"path": "/w/t.py", "exists": True, "executable": False})
    assert findings(plan, n1=mute)[0][2] == "n1: /w/t.py has no '#!' line that says what starts it"


def test_gpus_in_use_missing_or_shared() -> None:
    gpus = [{"index": i, "uuid": f"u{i}"} for i in range(2)]
    cuda = {"torch": {**TORCH, "cuda": "12.4"}}
    used = good(gpus=gpus, gpu_processes=[{"pid": 9, "gpu": "u1", "command": "python x"}], **cuda)
    others = {"n1": good(gpus=gpus, **cuda), "n2": good(gpus=gpus, **cuda)}
    assert findings(n0=used, **others)[0][2] == "n0: GPUs in use: python x (pid 9)"
    elsewhere = plan_for(hosts=(Host("n0", "a", devices=(0,)), *HOSTS[1:]))
    assert findings(elsewhere, n0=used, **others) == []
    absent = plan_for(hosts=(Host("n0", "a", devices=(0, 5)), *HOSTS[1:]))
    assert findings(absent, n0=good(gpus=gpus))[0][2] == "n0: GPUs: 2 usable, 6 needed"
    assert findings(absent)[0][2] == "n0: GPUs: 0 usable, 6 needed"
    # slots that the inventory promises are an error, ranks that the command line asks for are the user's own
    fewer = good(gpus=gpus[:1], **cuda)
    assert findings(n0=fewer, **others) == [("error", ("n0",), "n0: GPUs: 1 usable, 2 needed")]
    asked = planned(*HOSTS, engine="torchrun", nproc_per_node=2)
    assert findings(asked, n0=fewer, **others) == [
        ("warning", ("n0",), "n0: 2 ranks share 1 GPU"),
        ("warning", ("n0",), "n0 has GPU count 1, the 2 others 2"),
    ]


def test_what_check_would_warn_of_too_is_one_line_of_a_launch() -> None:
    heard: list[Any] = []
    other = good(kernel="2", glibc="2.31", code=None)
    found = of_launch(
        plan_for(), {"n0": good(kernel="1", glibc="2.35"), "n1": good(kernel="1", glibc="2.35"), "n2": other}
    )
    refuse(plan_for(), found, {}, heard.append)
    full, rest = heard
    assert "the code there did not come by 'fleet sync'" in full.message and rest.level == "warning"
    assert rest.message == "2 findings that may slow or spoil the run: glibc, kernel" and "fleet check" in rest.hint
    assert [event.id for event in rest.happened] == ["glibc", "kernel"]


ODD: list[dict[str, Any]] = [
    {"python": {"path": None, "error": "/opt/py: no such program"}},
    {"torch": None},
    {"activate": "x"},
    {"python": {"path": "/py", "version": "3.9.1", "error": None}},
    {"torch": {**TORCH, "version": "2.4"}},
    {"torch": {**TORCH, "cuda": "12.1"}},
    {"deepspeed": None},
    {"deepspeed": {"version": "0.15"}},
    {"gpu_error": "x"},
    {"arch": "aarch64"},
    {"gpus": [{"index": 0, "uuid": "u"}]},
    {"pci_gpus": 8, "torch": {**TORCH, "cuda": "12.1"}},
    {"gpus": [{"index": i, "uuid": f"u{i}"} for i in (0, 1)], "gpu_processes": [{"pid": 9, "gpu": "u1"}]},
    {"timed_out": ["gpus"]},
    {"timed_out": ["python"], "python": None},
    {"failed": {"python": "x"}, "python": None},
    {"failed": {"hardware": "x"}},
    {"disks": {"workdir": {**WORKDIR, "free": 1}}},
    {"disks": {"home": {"free": 1}}},
    {"glibc": "2.1"},
    {"limits": {"nofile": 5}},
    {"kernel": "2.4"},
    {},
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: "-".join(odd) or "nothing")
@pytest.mark.parametrize("engine", ["torchrun", "deepspeed", "command"])
def test_check_and_launch_have_one_verdict(engine: str, odd: dict[str, Any]) -> None:
    facts = {h.name: good(arch="x86_64", glibc="2.36", kernel="6.1", timed_out=[]) for h in HOSTS}
    facts["n1"].update(odd)
    checked = {f.message for f in of_check(HOSTS, facts, engine).findings if f.severity == "error"}
    launched = {f.message for f in of_launch(plan_for(engine), facts) if f.severity == "error"}
    assert checked == launched
    for needed, module in (("torchrun", "torch"), ("deepspeed", "torch"), ("deepspeed", "deepspeed")):
        if engine == needed and odd == {module: None}:
            assert len(checked) == 1 and f"{module} is not installed for /py" in checked.pop()


def test_ranks_that_would_each_train_alone() -> None:
    """accelerate distributes nothing where it finds no GPU, unless it is told of the CPUs."""
    installed = good(packages={"accelerate": "1.15.0"})
    several, one = plan_for("accelerate", HOSTS[:1]), plan_for("accelerate", (Host("n0", "10.0.0.1", slots=1),))
    said = "n0: no NVIDIA GPU: accelerate lets each rank train alone, unless it is set to train on CPUs"
    assert findings(several, n0=installed) == [("warning", ("n0",), said)]
    assert findings(one, n0=installed) == []


@pytest.mark.parametrize(
    "changed, said",
    [
        ({}, None),
        ({"torch": {**TORCH, "version": "2.4"}}, "n2 has torch 2.4, the 2 others 2.5"),
        ({"script": {"path": "/w/t.py", "exists": True, "sha256": "b" * 64}}, "n2: the script's content differs"),
        ({"code": {"folder": "/w", "state": "/s", "digest": "b" * 64}}, "n2: the code that was synced differs"),
        ({"python": {"path": "/py", "version": "3.9.1", "error": None}}, "n2 has Python 3.9, the 2 others 3.11"),
        ({"disks": {"workdir": {**WORKDIR, "exists": False}}}, "n2: the folder /w does not exist"),
    ],
)
def test_who_comes_late_is_compared_with_those_that_run(changed: dict[str, Any], said: str | None) -> None:
    late = of_late(plan_for(), {"n0": good(), "n1": good()}, "n2", good(**changed))
    found = [each for each in late if each.severity == "error"]
    assert [each.message[: len(said or "")] for each in found] == ([said] if said else [])


def test_what_a_late_hosts_own_sync_brought_is_the_code() -> None:
    """The folder has a runs/ by then."""
    late = good(code={"folder": "/w", "state": "/s", "digest": "b" * 64})
    assert not of_late(planned(*HOSTS, engine="torchrun", sync=True), {"n0": good()}, "n1", late)


@pytest.mark.parametrize("name, where", [(".gitignore", "*.log\nt.*\n"), (".fleetignore", "#\nt.py\n")])
def test_a_script_that_was_left_out_is_missing_by_a_line_of_a_file(tmp_path: Path, name: str, where: str) -> None:
    (tmp_path / "t.py").touch()
    (tmp_path / name).write_text(where)
    plan = planned(*HOSTS, engine="torchrun", folder=str(tmp_path))
    gone = good(script={"path": "/w/t.py", "exists": False, "sha256": None, "executable": False})
    (found,) = [f for f in of_launch(plan, {h.name: gone for h in HOSTS}) if f.id == "script-missing"]
    assert f"{tmp_path}/{name}:2: t." in found.remedy and "'!t.py' in .fleetignore" in found.remedy
    (tmp_path / name).write_text("")
    (found,) = [f for f in of_launch(plan, {h.name: gone for h in HOSTS}) if f.id == "script-missing"]
    assert "--sync" in found.remedy


def test_files_that_the_command_names_and_a_sync_leaves_out(tmp_path: Path) -> None:
    for name in ("train.py", "conf/a.yaml", "b.yaml", ".gitignore"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("conf/\ntrain.py\n" if name == ".gitignore" else "")
    words = ("train.py", "--config=conf/a.yaml", "b.yaml", "conf", "x" * 300, "/etc/hostname", "../..", "no\0file")
    plan = planned(*HOSTS, script="python3", args=words, engine="command", folder=str(tmp_path))
    assert list(unsent(plan, plan.job.args)) == [
        ("train.py", f"{tmp_path}/.gitignore:2: train.py"),
        ("conf/a.yaml", f"{tmp_path}/.gitignore:1: conf/"),
    ]
