"""Many hosts of one cause are one line, with what differs between them folded; JSON keeps each in full."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import ConnectError, FleetError, HostFailed, ProtocolError, Reason
from fleet.transport.ssh.dial import os_error
from tests.in_process import Outcome, command_line
from tests.scripted import Scripted


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(i: int) -> FleetError:
    return os_error(OSError(errno.ECONNREFUSED, ""), f"10.0.0.{i} port 22")


def fleet(hosts: Mapping[str, Any], *words: str) -> Outcome:
    """A command on hosts of which each answers so, or has such an error."""
    Path("hostfile").write_text("\n".join(hosts) + "\n")
    return command_line(words, Scripted(hosts))


def failures(errors: Mapping[str, FleetError], *options: str) -> list[str]:
    """The lines of stderr, each as long as it is."""
    lines = list[str]()
    for line in fleet(errors, *options, "ps").err.splitlines():
        if line.startswith(("error: ", "  hint: ")):
            lines.append(line)
        elif lines:
            lines[-1] += f" {line.strip()}"
    return lines


def test_200_dead_hosts_are_one_line() -> None:
    errors = {f"gpu{i:03}": refused(i) for i in range(1, 201)}
    assert failures(errors) == [
        "error: host gpu[001-200]: 10.0.0.[1-200] port 22 refused the connection",
        "  hint: is sshd running there, and on this port?",
    ]
    document = fleet(errors, "--json", "ps").document()
    assert document["hosts"]["gpu007"]["error"]["message"] == "10.0.0.7 port 22 refused the connection"
    assert len(failures(errors, "-v")) == 400


def test_each_kind_has_its_own_line_in_the_order_it_came() -> None:
    errors = {
        "a1": refused(1),
        "a2": os_error(OSError(errno.EHOSTUNREACH, ""), "10.0.0.2 port 22"),
        "a3": refused(3),
        "a4": ConnectError("Port 'x' is not a port", where="/etc/ssh/ssh_config:3", kind="config"),
    }
    assert [line.split(":")[1] for line in failures(errors) if line.startswith("error")] == [
        " host a[1,3]",
        " host a2",
        " host a4",
    ]
    assert failures(errors)[-1] == "error: host a4: /etc/ssh/ssh_config:3: Port 'x' is not a port"


def test_a_hint_is_a_line_to_copy_for_all_of_them() -> None:
    errors = {
        name: ConnectError(Reason("changed: {key}", key=name * 3), hint=Reason("--replace-key {host}", host=name))
        for name in ("gpu1", "gpu2")
    }
    assert failures(errors)[1] == "  hint: --replace-key gpu[1-2]"


def test_a_hint_that_no_node_set_fits_is_that_of_the_first() -> None:
    errors = {
        f"gpu{i}": HostFailed("open home", hint=Reason("{ssh} chmod go-w ~", ssh=f"ssh root@10.0.0.{i}"))
        for i in range(1, 65)
    }
    assert failures(errors) == ["error: host gpu[1-64]: open home", "  hint: ssh root@10.0.0.1 chmod go-w ~"]


def test_who_only_stands_by_comes_behind_the_cause() -> None:
    held = "nothing was sent: a2 could not"
    errors = {"a1": HostFailed(held, kind="held"), "a2": refused(2), "a3": HostFailed(held, kind="held")}
    said = [line.split(":")[1] for line in failures(errors) if line.startswith("error")]
    assert said == [" host a2", " host a[1,3]"]


# -- a launch that is refused ------------------------------------------------------------------------------------------
def launch(errors: Mapping[str, FleetError], *options: str) -> Outcome:
    return fleet(errors, *options, "launch", "--engine", "command", "./t")


def test_a_refusal_names_all_hosts_of_its_cause_and_the_others_before() -> None:
    errors = {"a1": refused(1), "a2": refused(2), "b": HostFailed("disk full")}
    done = launch(errors)
    said = " ".join(done.err.split())
    assert said.index("error: host b: disk full") < said.index("error: host a[1-2]: 10.0.0.[1-2] port 22 refused"), done
    assert "refused the connection; nothing was started anywhere" in said and done.code == 122
    assert launch(errors, "--json").document()["error"]["kind"] == "refused"


@pytest.mark.parametrize("error", [ProtocolError("odd", "a1"), ConnectError("x", where="f:1")])
def test_a_refusal_is_of_the_kind_that_its_first_error_is(error: FleetError) -> None:
    done = launch({"a1": error}, "--json")
    one = done.document()["error"]
    assert (one["kind"], done.code) == (error.kind, error.exit_code)
    assert one["message"].startswith(f"host a1: {error.reason}; nothing was started"), one
    assert not str(error).endswith("anywhere")


# -- findings ---------------------------------------------------------------------------------------------------
def probed(*facts: Mapping[str, Any]) -> dict[str, Any]:
    """Hosts n0, n1, ... with these facts."""
    return {f"n{i}": {"probe": [{"facts": {"hostname": f"n{i}", **each}}]} for i, each in enumerate(facts)}


def busy(pid: int) -> dict[str, Any]:
    return {"gpu_processes": [{"pid": pid, "gpu": "u", "command": "x"}]}


def test_preflight_findings_of_one_cause_are_one() -> None:
    gpus = [{"index": 0, "name": "A", "memory": 1, "uuid": "u", "driver": "5", "ecc_errors": 0}]
    disk = {"exists": False, "writable": True, "free": 1 << 40, "total": 1 << 40}
    facts = [{"gpus": gpus, **busy(i), "disks": {"workdir": {"path": f"/home/u{i}/w", **disk}}} for i in range(4)]
    said = " ".join(fleet(probed(*facts), "launch", "--engine", "command", "./t").err.split())
    assert "error: n[0-3]: the folder /home/u0/w, /home/u1/w, /home/u2/w, /home/u3/w does not exist" in said, said
    assert "error: n[0-3]: GPUs in use: x (pid 0 to 3)" in said, said


def test_check_shows_one_cause_once_and_keeps_each_in_json() -> None:
    facts = [busy(i) for i in range(4)]
    findings = fleet(probed(*facts), "--json", "check", "--engine", "command").document()["findings"]
    said = [f["message"] for f in findings if f["id"] == "gpu-busy"]
    assert said == [f"n{i}: GPUs in use: x (pid {i})" for i in range(4)]
    text = fleet(probed(*facts), "check", "--engine", "command").out
    assert "error   n[0-3]: GPUs in use: x (pid 0 to 3)  [gpu-busy]\n" in text and "4 hosts compared: 1 error" in text


def test_quiet_check_says_what_went_wrong_and_nothing_else() -> None:
    assert fleet(probed({}, {}), "-q", "check", "--engine", "command").out == ""
    bad = probed({"python": {"path": None, "error": "no such program"}}, {"glibc": "2.1"})
    shown = fleet(bad, "-q", "check").out
    assert shown.startswith("error   n0: ") and "compared" not in shown, shown


def test_no_host_that_answered_is_nothing_compared() -> None:
    done = fleet({"n0": refused(0)}, "check")
    assert "nothing to report" not in done.out and "0 hosts" not in done.out and "nothing was compared" in done.out
