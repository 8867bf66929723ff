"""The manifests that `fleet launch --on k8s --dry-run` writes: kubernetes/NAME.yaml has what is printed for a case.

FLEET_GOLDEN=write writes what is printed now; read the difference before you commit it.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleet.cli.main import run
from fleet.node.container.explain import about
from fleet.node.container.options import read
from fleet.ops.pack import pack
from fleet.requests.manifest import Manifest
from fleet.sources.kubernetes.manifest import KINDS, text_of
from tests.free_port import free_port

FOLDER = Path(__file__).with_name("kubernetes")
SCHEMAS = yaml.safe_load((FOLDER / "schemas.yaml").read_text())
ALL = [
    *("--env", "A=b: c", "--env", "HF_TOKEN", "--queue", "team-a", "--rdma", "rdma/hca:4", "--volume", "data:/data"),
    *(
        "--mem",
        "512G",
        "--cpus-per-task",
        "8",
        "--grace",
        "60",
        "--engine",
        "deepspeed",
        "--python",
        "/opt/conda/bin/python",
    ),
]
CASES = {
    "jobset": ["--nnodes", "4", "--nproc-per-node", "8", *ALL, "--max-restarts", "2"],
    "job": ["--as", "job", "--nnodes", "2", "--nproc-per-node", "8", "--max-restarts", "1", "--master-port", "23456"],
    "trainjob": ["--as", "trainjob", "--nnodes", "2", "--nproc-per-node", "4", *ALL, "--master-port", "23456"],
    "pytorchjob": ["--as", "pytorchjob", "--nnodes", "3", "--nproc-per-node", "8", *ALL, "--max-restarts", "1"],
    "alone": ["--nproc-per-node", "cpu", "--engine", "command", "--per", "node", "--name", "Über_Lang.1"],
}
STAMP = re.compile(r"-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")
SECRET = "hf_abcdefghijklmnop"


def typed(*options: str) -> list[str]:
    return ["launch", "--on", "k8s", "--dry-run", "--container", "team/train:1", *options, "train.py", "--lr", "1e-4"]


def written(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


@pytest.mark.parametrize("name", CASES)
def test_manifest(name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert run(typed(*CASES[name])) == 0
    out, err = capfd.readouterr()
    printed, file = STAMP.sub("-20260102-030405-abcd", out), FOLDER / f"{name}.yaml"
    if os.environ.get("FLEET_GOLDEN") == "write":
        file.write_text(printed)
    assert printed == file.read_text()
    assert SECRET not in out + err and max(map(ord, out)) < 128
    lines = [line.split()[:3] for line in err.splitlines() if line.startswith("  ")]
    assert ["fleet", "pack", "fleet.pyz"] in lines and ["kubectl", "apply", "-f"] in lines


def test_every_manifest_has_its_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*CASES, "schemas"} and {*KINDS} < {*CASES}


# -- what Kubernetes and the operators take ---------------------------------------------------------------------
def wrong(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """Yields where a value is not as the schema has it."""
    kind, types = schema["type"], {"text": str, "list": list, "map": dict, "switch": bool, "number": int}
    if kind == "quantity":
        value, kind = value if isinstance(value, bool | float | list | dict) else str(value), "text"
    if not isinstance(value, types[kind]) or (kind == "number" and isinstance(value, bool)):
        yield f"{where}: no {schema['type']}"
    elif kind == "text" and "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        yield f"{where}: {value!r}"
    elif kind == "number" and not schema.get("least", value) <= value <= schema.get("most", value):
        yield f"{where}: {value}"
    elif kind == "list":
        for number, each in enumerate(value):
            yield from wrong(each, schema["all"], f"{where}[{number}]")
    elif kind == "map":
        yield from (f"{where}: without {name}" for name in schema.get("needs", ()) if name not in value)
        if "one" in schema and len(value.keys() & {*schema["one"]}) != 1:
            yield f"{where}: not one of {schema['one']}"
        for name, each in value.items():
            known = schema.get("fields", {}).get(name, schema.get("all"))
            if known is None or not re.fullmatch(schema.get("keys", ".+"), name):
                yield f"{where}.{name}: unknown"
            else:
                yield from wrong(each, known, f"{where}.{name}")


def wrong_with(document: dict[str, Any]) -> list[str]:
    if (own := SCHEMAS["kinds"].get(document.get("kind"))) is None:
        return ["unknown kind"]
    version = [] if document.get("apiVersion") == own["apiVersion"] else ["apiVersion"]
    fields = {
        "apiVersion": {"type": "text"},
        "kind": {"type": "text"},
        "metadata": own["metadata"],
        "spec": own["spec"],
    }
    return [*version, *wrong(document, {"type": "map", "needs": ["metadata", "spec"], "fields": fields})]


@pytest.mark.parametrize("name", CASES)
def test_it_is_valid(name: str) -> None:
    assert [wrong_with(each) for each in written(name)] == [[] for _ in written(name)]


def put(path: str, value: Any) -> Callable[[Any], Any]:
    """Returns a change: the first thing that is called so, at any depth, becomes `value`; None takes it away."""

    def change(document: Any) -> bool:
        if isinstance(document, dict) and path in document:
            if value is None:
                del document[path]
            else:
                document[path] = value
            return True
        inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
        return any(change(each) for each in inner)

    return change


MUTANTS = {
    "another version": put("apiVersion", "batch/v1beta1"),
    "another kind": put("kind", "Jobset"),
    "a long name": put("name", "x" * 64),
    "a name of capitals": put("name", "Train"),
    "no name": put("name", None),
    "a label with a blank": put("labels", {"fleet/run": "a b"}),
    "a field that is misspelt": put("spec", {"replicas": 1}),
    "no spec": put("spec", None),
    "no completionMode": put("completionMode", None),
    "parallelism as text": put("parallelism", "4"),
    "completions below 1": put("completions", 0),
    "backoffLimit below 0": put("backoffLimit", -1),
    "restarts of pods": put("restartPolicy", "Sometimes"),
    "no image": put("image", None),
    "args as one text": put("args", "train.py --lr 1e-4"),
    "a number as a variable": put("env", [{"name": "NNODES", "value": 4}]),
    "a name of no variable": put("env", [{"name": "A B", "value": "4"}]),
    "two values": put("env", [{"name": "A", "value": "4", "valueFrom": {"secretKeyRef": {"name": "a", "key": "A"}}}]),
    "a Secret without a key": put("secretKeyRef", {"name": "train"}),
    "half a GPU": put("limits", {"nvidia.com/gpu": 0.5}),
    "a volume of nothing": put("volumes", [{"name": "shm"}]),
    "a medium that is none": put("emptyDir", {"medium": "memory"}),
    "a mount without a path": put("volumeMounts", [{"name": "shm"}]),
    "a number of ranks as a number": put("nprocPerNode", 8),
    "no nodes": put("numNodes", 0),
    "no runtime": put("runtimeRef", None),
    "no master": put("Master", None),
    "jobs as a map": put("replicatedJobs", {"node": {}}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_not_valid(mutant: str) -> None:
    tried = 0
    for document in (each for name in KINDS for each in written(name)):
        changed = copy.deepcopy(document)
        if MUTANTS[mutant](changed):
            tried += 1
            assert wrong_with(changed), (mutant, document["kind"])
    assert tried


# -- what pods find ---------------------------------------------------------------------------------------------
def containers(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("containers", ())
        for each in value.values():
            yield from containers(each)
    elif isinstance(value, list):
        for each in value:
            yield from containers(each)


def expanded(text: str) -> str:
    """Returns a text of a container as Kubernetes passes it on, where no variable is known: $$ is a $."""
    return re.sub(r"\$\$", "$", text)


def pod(documents: list[dict[str, Any]], index: int) -> tuple[dict[str, str], list[str]]:
    """Returns the variables and the arguments of a pod of a manifest, with those that its operator adds: tests/golden/
    platforms/{indexed-job,kubeflow,kubeflow-trainjob}.json have where that was read."""
    job, name = documents[-1], documents[-1]["metadata"]["name"]
    (own,) = {json.dumps({**each, "name": ""}): each for each in containers(documents)}.values()
    found = {each["name"]: expanded(each.get("value", "x")) for each in own.get("env", ())}
    if job["kind"] in ("Job", "JobSet", "TrainJob"):
        found["JOB_COMPLETION_INDEX"] = str(index)
    if job["kind"] == "TrainJob":
        trainer = job["spec"]["trainer"]
        nodes, each = trainer["numNodes"], trainer.get("numProcPerNode", "auto")
        found |= {"PET_MASTER_ADDR": f"{name}-node-0-0.{name}", "PET_MASTER_PORT": "29500"}
    elif job["kind"] == "PyTorchJob":
        spec = job["spec"]
        nodes, each = sum(it["replicas"] for it in spec["pytorchReplicaSpecs"].values()), spec["nprocPerNode"]
        (port,) = [it["containerPort"] for it in own["ports"] if it["name"] == "pytorchjob-port"]
        for prefix in ("", "PET_"):
            found |= {f"{prefix}MASTER_ADDR": f"{name}-master-0", f"{prefix}MASTER_PORT": str(port)}
        found |= {"WORLD_SIZE": str(nodes * int(each)), "RANK": str(index)}
    if "PET_MASTER_ADDR" in found:
        found |= {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": str(each), "PET_NODE_RANK": str(index)}
    return found, [*map(expanded, own["args"])]


# platform, nodes, ranks, master, port
PLACES = {
    "jobset": ("indexed-job", 4, 8, "{name}-node-0-0.{name}", 29500),
    "job": ("indexed-job", 2, 8, "{name}-0.{name}", 23456),
    "trainjob": ("kubeflow", 2, 4, "{name}-node-0-0.{name}", 23456),
    "pytorchjob": ("kubeflow", 3, 8, "{name}-master-0", 29500),
}


@pytest.mark.parametrize("name", PLACES)
def test_each_pod_knows_its_place(name: str) -> None:
    documents = written(name)
    platform, nodes, ranks, master, port = PLACES[name]
    for index in range(nodes):
        environ, args = pod(documents, index)
        options = read(args)
        given = {"master_port": options.master_port} if options.master_port else {}
        found = about({**environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, given)
        assert (found["wrong"], found["platform"]) == ([], platform)
        assert (found["nodes"], found["node_rank"]) == ({"least": nodes, "most": nodes}, index)
        where = master.format(name=documents[-1]["metadata"]["name"])
        assert (found["ranks"], found["master"], found["port"]) == (ranks, where, port)
        assert (options.script, options.args) == ("train.py", ["--lr", "1e-4"])
        assert environ["FLEET_SECRET"] == "x" and int(options.max_restarts) == (name in ("job", "pytorchjob"))


def test_pods_are_as_many_as_the_job_has() -> None:
    for name in ("jobset", "job", "trainjob"):
        (found,) = re.findall(r"parallelism: ([0-9]+)\s+completions: ([0-9]+)", (FOLDER / f"{name}.yaml").read_text())
        assert found == (str(PLACES[name][1]),) * 2


@pytest.mark.parametrize("code", [0, 3])
def test_what_a_pod_starts_ends_with_the_ranks_code(code: int, tmp_path: Path) -> None:
    """A pod of one node, with fleet.pyz as its ConfigMap has it."""
    environ, args = pod(written("alone"), 0)
    (own,) = containers(written("alone"))
    assert own["command"] == ["python3", "/opt/fleet/fleet.pyz"]
    line = [*args[: args.index("train.py")], "sh", "-c", f"echo trains; exit {code}"]
    environ |= {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NPROC_PER_NODE": "1"}
    environ["MASTER_PORT"] = str(free_port())
    argv = [sys.executable, str(pack(tmp_path / "fleet.pyz")), *line]
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "trains" in done.stdout) == (code, True), done


def test_a_configmap_has_room_for_fleet(tmp_path: Path) -> None:
    assert pack(tmp_path / "fleet.pyz").stat().st_size < (1 << 20) * 0.8


# -- names and values -------------------------------------------------------------------------------------------
def made(kind: str = "jobset", **more: Any) -> Manifest:
    usual = {
        "run": "train-20260102-030405-abcd",
        "container": "i",
        "command": ["python3"],
        "args": ["t.py"],
        "ranks": 8,
    }
    return Manifest(kind=kind, **{**usual, **more})


@given(st.from_regex(r"[A-Za-z0-9._-]{1,48}", fullmatch=True))
def test_names_are_labels_that_leave_room(stem: str) -> None:
    name = made(run=f"{stem}-20260102-030405-abcd").name
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and name.endswith("-20260102-030405-abcd")
    assert len(f"{name}-node-0-65535-abcde") <= 63 and "--" not in name


ODD = [
    *("on", "yes", "no", "y", "N", "null", "~", "true", "1e3", "0x1F", "0o17", "012", "1_000", "1:30", ".5", "-", "-1"),
    *(
        "",
        " ",
        " a ",
        "a: b",
        "a #b",
        "# a",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a`",
        "[a",
        "{a}",
        "a,b",
        "'",
        '"',
        "\\",
        "a\nb",
    ),
    *(
        "\n",
        "a\r\n",
        "\t",
        "\x1b[31m",
        "\x85",
        "\u2028",
        "\xa0",
        "\ufeff",
        "é",
        "日本",
        "😀",
        "$HOME",
        "$(A)",
        "$$",
        "$",
        "---",
    ),
    *("<<", "=", "?", "? a", "2026-01-02", ".inf", "a" * 4000, "a b " * 400),
]
texts = st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))


@given(st.sampled_from(sorted(KINDS)), texts, texts)
def test_values_are_read_back(kind: str, value: str, arg: str) -> None:
    objects = KINDS[kind](made(kind, env={"ODD": value}, args=["t.py", arg], nnodes=2))
    text = text_of(objects)
    assert list(yaml.safe_load_all(text)) == objects and text.isascii()
    environ, args = pod(list(objects), 0)
    assert (environ["ODD"], args[-1]) == (value, arg)
    # nothing stands without quotes that another reader of YAML could take for a number or a switch
    for token in yaml.scan(text):
        if isinstance(token, yaml.ScalarToken) and token.plain:
            assert re.fullmatch(r"[0-9]+|true|/?[A-Za-z][\w./-]*", token.value)
            assert token.value.lower() not in ("y", "n", "yes", "no", "on", "off", "false", "null")


# -- secrets ----------------------------------------------------------------------------------------------------
KUBECTL = """#!{python}
import json, os, sys
found = {{}}
for file in (it.partition("=")[2] for it in sys.argv if it.startswith("--from-env-file=")):
    for line in open(file).read().split("\\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equals, value = line.lstrip().partition("=")
            assert name not in found, name
            found[name] = value if equals else os.environ[name]
json.dump({{"argv": sys.argv, "data": found}}, open("made.json", "w"))
"""


def test_the_secret_is_made_without_a_value_in_any_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """kubectl takes a name without '=' from its environment: staging/src/k8s.io/kubectl/pkg/cmd/util/env_file.go."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", value := "hf_abc\n'def\"$(x)")
    Path("my train.env").write_text("# mine\nWANDB_API_KEY=a b\nMODE=x\n")
    options = ["--nproc-per-node", "8", "--env", "HF_TOKEN", "--env-file", "my train.env", "--env", "MODE=y"]
    assert run(typed(*options)) == 0
    out, err = capfd.readouterr()
    environ, _ = pod(list(yaml.safe_load_all(out)), 0)
    assert environ["MODE"] == "y" and environ["HF_TOKEN"] == environ["WANDB_API_KEY"] == "x"  # by reference
    (line,) = [it for it in err.splitlines() if "create secret" in it]
    Path("kubectl").write_text(KUBECTL.format(python=sys.executable))
    Path("kubectl").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", line], env={"PATH": path, "HF_TOKEN": value}, check=True)
    seen = json.loads(Path("made.json").read_text())
    assert len(seen["data"].pop("FLEET_SECRET")) == 32
    assert seen["data"] == {"HF_TOKEN": value, "WANDB_API_KEY": "a b", "MODE": "x"}
    assert not [it for it in (*seen["argv"], out, err) if "hf_" in it or "a b" in it]


REFUSED = [
    ([], "--nproc-per-node is missing"),
    (["--nproc-per-node", "gpu"], "--nproc-per-node gpu: a manifest has numbers"),
    (["--nproc-per-node", "8", "--nnodes", "2:4"], "--nnodes 2:4: a manifest has numbers"),
    (["--nproc-per-node", "8", "--env", f"MINE={SECRET}"], "--env MINE=***: a manifest must not hold a secret"),
    (["--nproc-per-node", "8", "--env", "API_KEY=x"], "--env API_KEY=***: a manifest must not hold a secret"),
    *(
        (["--nproc-per-node", "8", "--env", f"MINE={text}"], "--env MINE=***: a manifest must not hold a secret")
        for text in ('{"api_key": "abcd"}', "--password hunter2", "Authorization: Bearer abc", "pg://u:p@host/db")
    ),
    (["--nproc-per-node", "8", "--env", "NNODES=2"], "variable NNODES: the manifest and its operator set it"),
    (["--nproc-per-node", "8", "--env-file", "quoted.env"], "quoted.env: A is not in the form that kubectl reads"),
    (["--nproc-per-node", "8", "--env-file", "plain.env", "--env", "B"], "B is in plain.env, and --env B takes it"),
    (["--nproc-per-node", "8", "--env-file", "twice.env"], "A is in twice.env, and a second line has it"),
    (
        ["--nproc-per-node", "8", "--env-file", "plain.env", "--env-file", "more.env"],
        "B is in more.env, and plain.env has it, too",
    ),
    (["--nproc-per-node", "8", "--env", "C=\udcff"], "is no UTF-8"),
    (["--nproc-per-node", "8", "--queue", "Team A"], "--queue 'Team A': not what it takes"),
    (["--nproc-per-node", "8", "--rdma", "hca"], "--rdma 'hca': not what it takes"),
    (["--nproc-per-node", "8", "--volume", "data"], "--volume 'data': not what it takes"),
    (
        ["--nproc-per-node", "8", "--volume", "a:/x", "--volume", "b:/y/../x"],
        "--volume: /x is there twice",
    ),
    (["--nproc-per-node", "8", "--volume", "a:/opt/fleet/"], "--volume: /opt/fleet is there twice"),
    (["--nproc-per-node", "8", "--rdma", "rdma/hc\u0430"], "not what it takes"),
    (["--nproc-per-node", "8", "--per", "node"], "--per: engine torchrun has no such option"),
    (["--nproc-per-node", "8", "--grace", "1e10"], "--grace 1e+10: must be a number from 0 to 1e+09"),
    (["--nproc-per-node", "8", "--nnodes", "70000"], "--nnodes 70000: must be a whole number from 1 to 65536"),
    (["--nproc-per-node", "8", "--container-arg=--x"], "--container-arg has no meaning with --on k8s"),
    (["--nproc-per-node", "8", "--mem", "0"], "--mem '0': not what it takes"),
    (["--nproc-per-node", "8", "--cpus-per-task", "x"], "--cpus-per-task 'x': not what it takes"),
    (["--nproc-per-node", "8", "--container", ""], "--on k8s takes the image of its pods"),
    (["--nproc-per-node", "8", "--container", "a b"], "--container 'a b' is not a container image"),
    (["--nproc-per-node", "8", "--master-port", "x"], "--master-port x: not a port"),
    (["--nproc-per-node", "8", "--master-addr", "h"], "--master-addr has no meaning with --on k8s"),
    (["--nproc-per-node", "8", "--sync"], "--sync has no meaning with --on k8s"),
    (["--nproc-per-node", "8", "-w", "gpu1"], "--hosts has no meaning with --on k8s"),
    (["--nproc-per-node", "8", "--partition", "p"], "--partition: it is for --on slurm"),
    (["--nproc-per-node", "8", "--platform", "p"], "--platform: it is for --on env"),
]


@pytest.mark.parametrize("options, message", REFUSED, ids=lambda it: it if isinstance(it, str) else "")
def test_what_is_refused(
    options: list[str],
    message: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("B", "b")
    Path("quoted.env").write_text('A="b"\n')
    Path("plain.env").write_text("B=b\n")
    Path("more.env").write_text("B=c\n")
    Path("twice.env").write_text("A=1\nA=2\n")
    assert run(typed(*options)) == 2
    out, err = capfd.readouterr()
    assert message in err and ("  hint: " in err or "must be" in message) and out == "" and SECRET not in err


def test_it_applies_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Without --dry-run there is nothing to do, and the hint is the line that works."""
    line = ["launch", "--on", "k8s", "--container", "i", "--nproc-per-node", "8", "train.py"]
    assert run(line) == 2
    err = capfd.readouterr().err
    hint = f"fleet --dry-run {' '.join(line)}"
    assert err == f"error: --on k8s starts nothing: it writes a manifest\n  hint: {hint}\n"
    assert run(hint.split()[1:]) == 0
    assert run([*line[:-1], "--env", "A=aB3xyz99zzz", "train.py"]) == 2  # *** is no value that works
    assert "  hint: give --dry-run, too\n" in capfd.readouterr().err
    assert run(["launch", "--queue", "a", "train.py"]) == 2
    assert "--queue: it is for --on k8s" in capfd.readouterr().err


def test_a_run_of_a_module_is_called_as_launch_calls_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", *typed("--nproc-per-node", "8", "-m")[:-3], "pkg.train"]) == 0
    found = json.loads(capfd.readouterr().out)
    (own,) = containers(found["manifest"])
    assert own["args"] == ["-m", "pkg.train"] and found["plan"]["run"].startswith("pkg-train-2")


def test_a_shell_script_is_started_as_launch_does(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", *typed("--nproc-per-node", "8")[:-3], "sft.sh"]) == 0
    (own,) = containers(json.loads(capfd.readouterr().out)["manifest"])
    assert own["args"] == ["--engine=command", "--per=node", "sft.sh"]


@pytest.mark.parametrize("wait, passed", [("--wait=false", []), ("--wait", []), ("--wait=30", ["--wait=30.0"])])
def test_pods_read_what_they_are_given(wait: str, passed: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", *typed("--nproc-per-node", "8", wait)]) == 0
    (own,) = containers(json.loads(capfd.readouterr().out)["manifest"])
    assert own["args"] == [*passed, "train.py", "--lr", "1e-4"] and read(own["args"]).script == "train.py"


def test_json_has_the_objects_and_the_lines(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", *typed("--nproc-per-node", "8")]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["verb"], found["dry_run"], found["plan"]["as"]) == ("launch", True, "jobset")
    assert [wrong_with(each) for each in found["manifest"]] == [[]]
    assert list(found["steps"]) == ["apply", "follow", "end"] and found["plan"]["run"] in found["steps"]["end"][0]
