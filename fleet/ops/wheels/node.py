"""What every node is asked and told about wheels: its interpreter, and the install."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.errors import ConnectError, FleetError, HostFailed, PreflightError
from fleet.events import Started
from fleet.model import Host, Inventory, Result
from fleet.ops.each import on_each
from fleet.ops.runtime import Runtime
from fleet.ops.wheels.wheel import Wheel
from fleet.rules.units import size
from fleet.transport.base import Session
from fleet.transport.program import call

ANSWER_SECONDS = 60.0
SILENCE_SECONDS = 15.0
LOCK_SECONDS = 600.0


def _spec(inventory: Inventory, host: Host) -> dict[str, Any]:
    return {"python": host.python, "activate": host.activate, "env": inventory.env_for(host),
            "deadline": ANSWER_SECONDS}


def _complaint(answer: Mapping[str, Any], host: Host) -> FleetError | None:
    """What the node says went wrong, None where nothing did."""
    if not answer:
        return ConnectError("the node gave no answer", host=host.name, kind="protocol")
    if answer["event"] == "failed":
        hint = str(answer.get("hint") or "") or None
        return HostFailed(str(answer.get("message")), hint=hint, host=host.name, kind="wheels")
    return None


def ask(
    inventory: Inventory, wheels: Sequence[Wheel], runtime: Runtime, *, judge: bool = True
) -> tuple[Result, ...]:
    """Every host's interpreter and what it has of the wheels, as data["facts"]; nothing is changed. judge: also what
    its pip takes and which requirements are unmet, which costs it an import of pip."""
    asked = [wheel.asked() for wheel in wheels]

    def task(session: Session, host: Host) -> Result:
        spec = {**_spec(inventory, host), "wheels": asked, "judge": judge}
        answer = call(session, "interpreter", spec, timeout=ANSWER_SECONDS + 30, silence=SILENCE_SECONDS,
                      cancel=runtime.cancel)
        error = _complaint(answer, host)
        return Result(host.name, False, error=error) if error else Result(host.name, True, 0, data={"facts": answer})

    return on_each(inventory.hosts, runtime, task, what="asking its Python")


def lacking(facts: Mapping[str, Any], wheels: Sequence[Wheel]) -> list[Wheel]:
    """The wheels that this node does not have as they are, or has never imported."""
    return [w for w, s in zip(wheels, facts["states"], strict=True) if s["state"] != "there" or not s["verified"]]


def refusal(facts: Mapping[str, Any], wheels: Sequence[Wheel]) -> PreflightError | None:
    """Why nothing can be installed into this interpreter, known before anything is sent; None where it can."""
    todo = [w for w, s in zip(wheels, facts["states"], strict=True) if s["state"] != "there"]
    python = facts["executable"]
    if facts["pip"] is None:
        return PreflightError(f"{python} has no pip", kind="no-pip",
                              hint=f"{python} -m ensurepip, or apt-get install python3-pip python3-venv")
    if facts["managed"] and todo:
        return PreflightError(
            f"{python} is managed by the system, which lets nobody install into it", kind="managed",
            hint="make an environment (python3 -m venv ~/train) and name its python in the inventory: python: "
                 "~/train/bin/python")
    if facts["unmet"]:
        said = ", ".join(f"{wheel} needs {need} ({'has ' + has if has else 'absent'})"
                         for wheel, need, has in facts["unmet"][:8])
        return PreflightError(f"unmet: {said}", kind="unmet",
                              hint="add these wheels, or let fleet collect them: fleet sync --wheels requirements.txt")
    needed = sum(w.unpacked for w in todo)
    if needed > facts["free"]:
        return PreflightError(f"{size(needed)} are to be installed in {facts['target']}, {size(facts['free'])} are "
                              "free", kind="room", hint="free some space there")
    return None


def install(
    inventory: Inventory, hosts: Sequence[Host], folder: str, wheels: Sequence[Wheel], runtime: Runtime,
    import_seconds: float, held: Callable[[str], Sequence[Wheel]],
) -> tuple[Result, ...]:
    """Install the carried wheels on these hosts. folder: where they lie there. held: host name -> what it lacks."""
    def task(session: Session, host: Host) -> Result:
        runtime.emit(Started(host.name, "installing"))
        mine = {wheel.name for wheel in held(host.name)}
        spec = {**_spec(inventory, host), "folder": folder, "mark": f"wheels-{uuid.uuid4().hex}",
                "wait": LOCK_SECONDS, "import_deadline": import_seconds,
                "wheels": [w.carried() for w in wheels if w.name in mine]}
        began = time.monotonic()
        answer = call(session, "install", spec, silence=SILENCE_SECONDS, cancel=runtime.cancel)
        state = {w.name: "there" for w in wheels} | dict(answer.get("wheels") or {})
        error = _complaint(answer, host)
        if error:
            return Result(host.name, False, error=error, data={"wheels": state})
        return Result(host.name, True, 0, data={"python": answer["executable"], "wheels": state,
                                                "seconds": round(time.monotonic() - began, 1)})

    return on_each(hosts, runtime, task, what="installing")
