"""Many hosts of one cause are told of in one line, with what differs between them folded; JSON keeps each in full."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import click
import pytest

from fleet.answers.run_events import Unreachable
from fleet.cli.line.options import Settings, settings_of
from fleet.cli.screen.output import write_failures
from fleet.cli.screen.progress import ProgressLine
from fleet.cli.verbs.check import screen
from fleet.cli.verbs.setup_ssh import remark, tell
from fleet.each import as_one
from fleet.errors import ConnectError, FleetError, HostFailed, Interrupted, ProtocolError, Reason
from fleet.events import Event, Notice
from fleet.model import Host, Inventory, Job, Report, Result
from fleet.ops.check import Checked
from fleet.ops.run.plan.findings import findings as judge_launch
from fleet.ops.run.plan.plan import plan as make_plan
from fleet.requests.launch import Launch
from fleet.rules.causes import by_cause
from fleet.rules.judge import judge, told
from fleet.rules.rule import Want
from fleet.rules.view import view
from fleet.transport.ssh.dial import os_error


def refused(i: int) -> FleetError:
    return os_error(OSError(errno.ECONNREFUSED, ""), f"10.0.0.{i} port 22")


def failures(errors: dict[str, FleetError], capsys: pytest.CaptureFixture[str], verbose: int = 0) -> list[str]:
    results = tuple(Result(host, False, error=error) for host, error in errors.items())
    with click.Context(click.Command("x")) as ctx:
        settings_of(ctx).verbose = verbose
        write_failures(Report("exec", results, 122))
    return capsys.readouterr().err.splitlines()


def test_200_dead_hosts_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert Settings().verbose == 0
    errors = {f"gpu{i:03}": refused(i) for i in range(1, 201)}
    assert failures(errors, capsys) == [
        "error: host gpu[001-200]: 10.0.0.[1-200] port 22 refused the connection",
        "  hint: is sshd running there, and on this port?",
    ]
    assert errors["gpu007"].as_json()["message"] == "10.0.0.7 port 22 refused the connection"
    assert len(failures(errors, capsys, verbose=1)) == 400


def test_each_kind_has_its_own_line_in_the_order_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    errors = {
        "a1": refused(1),
        "a2": os_error(OSError(errno.EHOSTUNREACH, ""), "10.0.0.2 port 22"),
        "a3": refused(3),
        "a4": ConnectError("Port 'x' is not a port", where="/etc/ssh/ssh_config:3", kind="config"),
    }
    assert [line.split(":")[1] for line in failures(errors, capsys) if line.startswith("error")] == [
        " host a[1,3]",
        " host a2",
        " host a4",
    ]
    assert failures(errors, capsys)[-1] == "error: host a4: /etc/ssh/ssh_config:3: Port 'x' is not a port"


def folded(*texts: str) -> str:
    causes = by_cause([(f"h{i}", text, None) for i, text in enumerate(texts)])
    assert len(causes) == 1
    return causes[0].message


@pytest.mark.parametrize(
    "values, said",
    [
        (["x"] * 9, "x"),
        (["a1", "a2", "a3"], "a[1-3]"),
        (["7", "9"], "7, 9"),
        (["7", "9", "10", "3"], "3 to 10"),
        (["1.5 GiB", "900 MiB"], "1.5 GiB, 900 MiB"),
        (["p q", "r"], "p q, r"),
        ([f"SHA256:{c}+/" for c in "abcde"], "SHA256:a+/, SHA256:b+/, SHA256:c+/ and 2 more"),
        (["/a b", "/a c", "/a d", "/a e"], "/a b,c,d,e"),
        (["{y}", "{x}"], "{y}, {x}"),
    ],
)
def test_what_differs_is_folded_as_what_it_is(values: list[str], said: str) -> None:
    assert folded(*(Reason("is {x}, no {more}", x=value) for value in values)) == f"is {said}, no {{more}}"


def test_numbers_that_a_node_says_are_details_and_names_paths_and_versions_are_not() -> None:
    said = "{} bytes are to be written to /data2, {} are free on gpu1 (3.11.2), pids {}"
    texts = [Reason.of_node(said.format(9, i, f"{i}, 4")) for i in range(5)]
    assert folded(*texts) == said.format(9, "0 to 4", "0, 4, 1, 4, 2, 4 and 2 more")
    differing = [Reason.of_node(f"{path} holds 3") for path in ("/data2", "/data3", "gpu4", "1.2.3")]
    assert len({r.template for r in differing}) == 4


def test_a_hint_is_a_line_to_copy_for_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    errors: dict[str, FleetError] = {
        name: ConnectError(Reason("changed: {key}", key=name * 3), hint=Reason("--replace-key {host}", host=name))
        for name in ("gpu1", "gpu2")
    }
    assert failures(errors, capsys)[1] == "  hint: --replace-key gpu[1-2]"


def test_a_hint_that_no_node_set_fits_is_that_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    errors: dict[str, FleetError] = {
        f"gpu{i}": HostFailed("open home", hint=Reason("{ssh} chmod go-w ~", ssh=f"ssh root@10.0.0.{i}"))
        for i in range(1, 65)
    }
    assert failures(errors, capsys) == ["error: host gpu[1-64]: open home", "  hint: ssh root@10.0.0.1 chmod go-w ~"]


def test_a_refusal_names_all_hosts_of_its_cause_and_tells_the_others_before() -> None:
    told_: list[Event] = []
    errors = {f"a{i}": refused(i) for i in (1, 2)} | {"b": HostFailed("disk full", host="b")}
    for name, error in errors.items():
        error.host = name
    one = as_one(errors, told_.append, Unreachable, "; nothing was started")
    assert str(one) == "host a[1-2]: 10.0.0.[1-2] port 22 refused the connection; nothing was started"
    assert (one.kind, one.exit_code) == ("refused", 122)
    (notice,) = told_
    assert isinstance(notice, Notice) and notice.message == "host b: disk full"
    assert [record["host"] for record in notice.records] == ["b"]


@pytest.mark.parametrize(
    "error", [ProtocolError("odd", "a1"), Interrupted("interrupted"), ConnectError("x", where="f:1")]
)
def test_a_refusal_is_of_the_kind_that_its_first_error_is(error: FleetError) -> None:
    error.host = "a1"
    one = as_one({"a1": error}, lambda event: None, Unreachable, "; so it was")
    assert type(one) is type(error) and (one.kind, one.exit_code) == (error.kind, error.exit_code)
    assert str(one) == f"host a1: {error.reason}; so it was" and not str(error).endswith("so it was")


def test_preflight_findings_of_one_cause_are_one() -> None:
    hosts = tuple(Host(f"n{i}", f"10.0.0.{i}") for i in range(4))
    plan = make_plan(Inventory(hosts), Job("t.py", engine="command"), Launch("t.py"), "r")
    gpus = [{"index": 0, "uuid": "u"}]
    raw: dict[str, Any] = {
        h.name: {
            "gpus": gpus,
            "gpu_processes": [{"pid": i, "gpu": "u", "command": "x"}],
            "disks": {"workdir": {"path": f"/home/u{i}/w", "exists": False, "writable": True, "free": 1 << 40}},
        }
        for i, h in enumerate(hosts)
    }
    said = [(severity, len(cause.whose), cause.message) for severity, cause in told(judge_launch(plan, raw, False))]
    assert said == [
        ("error", 4, "n[0-3]: the folder /home/u0/w, /home/u1/w, /home/u2/w and 1 more does not exist"),
        ("error", 4, "n[0-3]: GPUs in use: x (pid 0 to 3)"),
    ]


def test_check_shows_one_cause_once_and_keeps_each_in_json() -> None:
    views = {f"n{i}": view({"gpu_processes": [{"pid": i}]}) for i in range(4)}
    findings = tuple(judge(views))
    assert [f.message for f in findings] == [f"n{i}: GPUs in use: pid {i}" for i in range(4)]
    text = click.unstyle(screen(Checked("check", (), 0, views=views, findings=findings), width=120))
    assert "error   n[0-3]: GPUs in use: pid 0 to 3  [gpu-busy]\n" in text
    assert "4 hosts compared: 1 error\n" in text


def test_quiet_check_says_what_went_wrong_and_nothing_else() -> None:
    views = {"n0": view({}), "n1": view({})}
    assert screen(Checked("check", (), 0, views=views), quiet=True) == ""
    bad = {"n0": view({"python": {"path": None, "error": "no such program"}}, Want(modules=("torch",)))}
    bad["n1"] = view({"glibc": "2.1"})
    findings = tuple(judge(bad))
    assert screen(Checked("check", (), 0, views=bad, findings=findings), quiet=True).count("\n") == 2


def test_no_host_that_answered_is_nothing_compared() -> None:
    text = screen(Checked("check", (Result("n0", False, error=refused(0)),), 122))
    assert "nothing to report" not in text and "0 hosts" not in text and "nothing was compared" in text


def test_a_template_of_a_node_reaches_nothing_of_ours() -> None:
    nasty = Reason.of_node("{0.__class__} {n0:>999999999} 7 {n0}")
    assert str(nasty) == "{0.__class__} {n0:>999999999} 7 {n0}"
    assert isinstance(SimpleNamespace(x=nasty).x + " more", Reason)


def test_who_only_stands_by_comes_behind_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    errors: dict[str, FleetError] = {
        "a1": HostFailed("nothing was sent: a2 could not", kind="held"),
        "a2": refused(2),
        "a3": HostFailed("nothing was sent: a2 could not", kind="held"),
    }
    said = [line.split(":")[1] for line in failures(errors, capsys) if line.startswith("error")]
    assert said == [" host a2", " host a[1,3]"]


def test_remarks_about_many_hosts_are_told_of_together_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    later: list[Notice] = []
    emit = tell(ProgressLine(), quiet=True, later=later)
    for i in range(1, 65):
        emit(Notice("warning", Reason("its home {home} is open", home=f"/home/u{i}"), f"gpu{i:02}", "chmod go-w ~"))
    emit(Notice("info", "not said", "gpu01"))
    assert capsys.readouterr().err == ""
    remark(later)
    assert capsys.readouterr().err.splitlines() == [
        "warning: host gpu[01-64]: its home /home/u1, /home/u2, /home/u3 and 61 more is open",
        "  hint: chmod go-w ~",
    ]


def test_reasons_whose_details_have_one_name() -> None:
    """Of two gateways in a row, each names its own."""
    inner = Reason("gateway {gateway}: ", gateway="inner") + Reason("refused by {gateway_}", gateway_="x")
    both = Reason("gateway {gateway}: ", gateway="outer") + inner
    assert both == "gateway outer: gateway inner: refused by x"
    assert sorted(both.details.values()) == ["inner", "outer", "x"] and len(both.details) == 3
    assert both + Reason(" {gateway}", gateway="4th") == f"{both} 4th"
