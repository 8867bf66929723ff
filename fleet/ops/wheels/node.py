"""What every node is asked and told about wheels: its interpreter, and the install."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fleet.errors import HostFailed, PreflightError, Reason
from fleet.events import Started
from fleet.model import Host, Inventory, Result
from fleet.ops.each import on_each
from fleet.ops.runtime import Runtime
from fleet.ops.shape import FAILED, fits
from fleet.ops.wheels.wheel import Wheel
from fleet.rules.units import size
from fleet.transport.base import Session
from fleet.transport.frames import Nonsense
from fleet.transport.program import call

ANSWER_SECONDS = 60.0
SILENCE_SECONDS = 15.0
LOCK_SECONDS = 600.0
STATE = re.compile("there|absent|other|broken")
# what remote/interpreter.py and remote/install.py answer; see there
FACTS = {
    "executable": str,
    "version": re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){2}"),
    "implementation": str,
    "platform": str,
    "soabi": (str, None),
    "prefix": str,
    "target": str,
    "pip": (str, None),
    "managed": bool,
    "free": int,
    "tags": [re.compile(r"[A-Za-z0-9][\w.]*(-[A-Za-z0-9][\w.]*){2}", re.ASCII)],
    "states": [{"state": STATE, "verified": bool}],
    "unmet": [{"wheel": str, "needs": str, "has": (str, None)}],
}


def _spec(inventory: Inventory, host: Host) -> dict[str, Any]:
    return {
        "python": host.python,
        "activate": host.activate,
        "env": inventory.env_for(host),
        "deadline": ANSWER_SECONDS,
    }


def _checked(answer: Mapping[str, Any], host: Host, shape: Any) -> Mapping[str, Any]:
    """A node's answer as it is. HostFailed with what it says went wrong; Nonsense where it says neither."""
    if fits(answer, FAILED):
        raise HostFailed(Reason.of_node(answer["message"]), hint=answer["hint"] or None, host=host.name, kind="wheels")
    if not fits(answer, shape):
        raise Nonsense("its Python or its wheels are described in another way", host.name)
    return answer


def ask(inventory: Inventory, wheels: Sequence[Wheel], runtime: Runtime, *, judge: bool = True) -> tuple[Result, ...]:
    """Every host's interpreter and what it has of the wheels, as data["facts"]; nothing is changed. judge: also what
    its pip takes and which requirements are unmet, which costs it an import of pip."""
    asked = [wheel.asked() for wheel in wheels]

    def task(session: Session, host: Host) -> Result:
        spec = {**_spec(inventory, host), "wheels": asked, "judge": judge}
        answer = call(
            session, "interpreter", spec, timeout=ANSWER_SECONDS + 30, silence=SILENCE_SECONDS, cancel=runtime.cancel
        )
        facts = _checked(answer, host, FACTS)
        if len(facts["states"]) != len(wheels):
            raise Nonsense("it tells of other wheels than it was asked for", host.name)
        return Result(host.name, True, 0, data={"facts": facts})

    return on_each(inventory.hosts, runtime, task, what="asking its Python")


def states(facts: Mapping[str, Any], wheels: Sequence[Wheel]) -> dict[str, str]:
    """wheel's name -> what this node has of it."""
    return {w.name: s["state"] for w, s in zip(wheels, facts["states"], strict=False)}


def lacking(facts: Mapping[str, Any], wheels: Sequence[Wheel]) -> list[Wheel]:
    """The wheels that this node does not have as they are, or has never imported."""
    return [w for w, s in zip(wheels, facts["states"], strict=True) if s["state"] != "there" or not s["verified"]]


def refusal(facts: Mapping[str, Any], wheels: Sequence[Wheel]) -> PreflightError | None:
    """Why nothing can be installed into this interpreter, known before anything is sent; None where it can."""
    todo = [w for w, s in zip(wheels, facts["states"], strict=True) if s["state"] != "there"]
    python = facts["executable"]
    if facts["pip"] is None:
        return PreflightError(
            f"{python} has no pip",
            kind="no-pip",
            hint=f"{python} -m ensurepip, or apt-get install python3-pip python3-venv",
        )
    if facts["managed"] and todo:
        return PreflightError(
            f"{python} is managed by the system, which lets nobody install into it",
            kind="managed",
            hint="make an environment (python3 -m venv ~/train) and name its python in the inventory: python: "
            "~/train/bin/python",
        )
    if facts["unmet"]:
        said = ", ".join(
            f"{u['wheel']} needs {u['needs']} ({'has ' + u['has'] if u['has'] else 'absent'})"
            for u in facts["unmet"][:8]
        )
        return PreflightError(
            f"unmet: {said}",
            kind="unmet",
            hint="add these wheels, or let fleet collect them: fleet sync --wheels requirements.txt",
        )
    needed = sum(w.unpacked for w in todo)
    if needed > facts["free"]:
        return PreflightError(
            Reason(
                "{size} are to be installed in {to}, {free} are free",
                size=size(needed),
                to=facts["target"],
                free=size(facts["free"]),
            ),
            kind="room",
            hint="free some space there",
        )
    return None


def install(
    inventory: Inventory,
    wheels: Sequence[Wheel],
    facts: Mapping[str, Mapping[str, Any]],
    folder: str,
    runtime: Runtime,
    import_seconds: float,
) -> tuple[Result, ...]:
    """Install the carried wheels on every host of the inventory. folder: where they lie there. facts: by host name.
    data["wheels"] is what a host has in the end, "unknown" where it was lost before it could say."""
    mine = {host.name: lacking(facts[host.name], wheels) for host in inventory.hosts}
    lost = {name: states(facts[name], wheels) | {w.name: "unknown" for w in some} for name, some in mine.items()}

    def task(session: Session, host: Host) -> Result:
        runtime.emit(Started(host.name, "installing"))
        some = mine[host.name]
        spec = {
            **_spec(inventory, host),
            "folder": folder,
            "mark": f"wheels-{uuid.uuid4().hex}",
            "wait": LOCK_SECONDS,
            "import_deadline": import_seconds,
            "wheels": [w.carried() for w in some],
        }
        began = time.monotonic()
        answer = call(session, "install", spec, silence=SILENCE_SECONDS, cancel=runtime.cancel)
        done = re.compile("installed|there")
        try:
            _checked(
                answer, host, {"event": re.compile("done"), "executable": str, "wheels": {w.name: done for w in some}}
            )
        except HostFailed as error:
            # it may have failed before it could look
            said = answer.get("wheels") if fits(answer.get("wheels"), {w.name: STATE for w in some}) else {}
            return Result(host.name, False, error=error, data={"wheels": lost[host.name] | _only(said, some)})
        return Result(
            host.name,
            True,
            0,
            data={
                "python": answer["executable"],
                "wheels": lost[host.name] | _only(answer["wheels"], some),
                "seconds": round(time.monotonic() - began, 1),
            },
        )

    results = on_each(inventory.hosts, runtime, task, what="installing")
    return tuple(r if "wheels" in r.data else replace(r, data={"wheels": lost[r.host]}) for r in results)


def _only(said: Any, wheels: Sequence[Wheel]) -> dict[str, str]:
    return {w.name: said[w.name] for w in wheels if w.name in said}
