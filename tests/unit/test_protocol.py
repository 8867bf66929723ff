"""Messages as fleet/protocol defines them: what fits is read, nothing else is, and nobody who reads what fits fails.

FLEET_FUZZ=5000 looks harder.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.codec import Misfit, decode
from fleet.errors import FleetError, PreflightError
from fleet.model import Host, Inside, Inventory, Job, Result
from fleet.node.gang import ends
from fleet.ops import kill_port
from fleet.ops.build import judge as toolchain
from fleet.ops.check import view_of
from fleet.ops.run.plan.findings import findings
from fleet.ops.run.plan.plan import plan as make_plan
from fleet.ops.run.start.preflight import known_of, port_is_taken
from fleet.ops.wheels import node, tags
from fleet.protocol.messages import build, chain, code, facts, ports, run, wheels
from fleet.requests.hosts import Check, KillPort
from fleet.requests.launch import Launch
from fleet.rules.judge import judge
from fleet.rules.matrix import matrix
from tests.liar import steady
from tests.schemas import as_json, fitting, kinds, nearly

brief = settings(steady, max_examples=max(min(20, steady.max_examples), steady.max_examples // 10))
MODULES = (build, chain, code, facts, ports, run, wheels)
KINDS = {f"{module.__name__.rpartition('.')[2]}.{kind.__name__}": kind for module in MODULES for kind in kinds(module)}
A = TypedDict("A", {"event": Literal["a"], "x": int})
B = TypedDict("B", {"event": Literal["b"], "y": list[tuple[str, int]]})


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@brief
@given(data=st.data())
def test_what_fits_is_read_and_what_does_not_is_a_misfit(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    value = as_json(data.draw(fitting(kind)))
    assert as_json(decode(kind, value)) == value
    with contextlib.suppress(Misfit):
        value = as_json(data.draw(nearly(kind)))
        assert decode(kind, as_json(decode(kind, value))) == decode(kind, value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Literal[True], True),
        (int, 1),
        (float, 1),
        (None, None),
        (str | None, None),
        (list[int], [1, 2]),
        (dict[str, int], {"a": 1}),
        (A, {"event": "a", "x": 1, "more": 2}),
        (A | B, {"event": "b", "y": []}),
        (A | None, None),
        (str | list[int], [1]),
        (Annotated[int, bool], 1),
    ],
)
def test_what_fits(kind: Any, value: Any) -> None:
    assert decode(kind, value) == value


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (int, True, "the message is True"),
        (int, 1.0, "is 1.0"),
        (int, 1 << 64, "is 184"),
        (bool, 1, "is 1"),
        (str, "x" * 5000, "is 'xxx"),
        (list[int], [1, "2"], r"\[1\] is '2'"),
        (dict[str, int], {"a": "\x1b[2J"}, r"\['a'\] is '\\x1b\[2J'"),
        (A, {"event": "a"}, "x is missing"),
        (A, [], r"the message is \[\]"),
        (A | B, {"event": "c"}, "event is 'c'"),
        (A | B, {"x": 1}, "event is missing"),
        (A | B, {"event": "b", "y": [["a", 1], ["b"]]}, r"y\[1\] is \['b'\]"),
        (A | None, {"event": "a", "x": None}, "x is None"),
        (Annotated[int, bool], 0, "is 0"),
    ],
)
def test_what_does_not_fit_says_where(kind: Any, value: Any, says: str) -> None:
    with pytest.raises(Misfit, match=says):
        decode(kind, value)


def test_a_tuple_is_what_a_list_becomes() -> None:
    assert decode(B, {"event": "b", "y": [["a", 1]]})["y"] == [("a", 1)]


# -- who reads what fits ------------------------------------------------------------------------------------------
HOST = Host("n1", "n1", slots=2, devices=(1,))


def from_node(said: Any) -> Any:
    """Returns facts as `ops.facts.ask` passes them on: without what the head adds itself."""
    return {name: fact for name, fact in decode(facts.Facts, as_json(said)).items() if name not in ("before", "speeds")}


@brief
@given(fitting(facts.Facts), st.sampled_from(["torchrun", "deepspeed", "command"]))
@example({"network": {"replaced": {"NCCL_SOCKET_IFNAME": "eth9"}}}, "torchrun")
@example({"links": {"another": {"mbit": -1, "rtt_ms": 0, "mtu": 0, "again": 0, "least": False}}}, "torchrun")
def test_any_facts_are_compared(said: Any, engine: str) -> None:
    known = from_node(said)
    seen = {"n1": view_of(HOST, known, Check(engine=engine))}
    assert judge(seen) is not None and matrix(seen, 2) is not None


@brief
@given(fitting(facts.Facts), st.booleans())
def test_any_facts_are_judged_before_a_launch(said: Any, master: bool) -> None:
    hosts = (HOST, Host("n2", "n2")) if master else (Host("n2", "n2"), HOST)
    plan = make_plan(Inventory(hosts), Job("t.py"), Launch("t.py"), "r")
    known = {"n1": {**from_node(said), "heard": 1.0}}
    assert findings(plan, known, complete=False) is not None
    assert isinstance(port_is_taken(known["n1"]), bool)
    with contextlib.suppress(FleetError):
        plan.refine({"n1": known_of(known["n1"]), "n2": known_of({})})


@brief
@given(fitting(build.Toolchain), fitting(build.Toolchain), st.sampled_from([(), ("8.0",), ("9.0a", "12.0+PTX")]))
def test_any_toolchain_is_judged(said: Any, other: Any, arch: tuple[str, ...]) -> None:
    known = {name: decode(build.Toolchain, as_json(one)) for name, one in (("n1", said), ("n2", other))}
    assert all(isinstance(e, PreflightError) for e in toolchain.toolchain(known["n1"], arch, needs_torch=True))
    toolchain.older_glibc(known, "n1")
    with contextlib.suppress(FleetError):
        toolchain.fleet_arch(known)


@brief
@given(fitting(wheels.Interpreter), fitting(wheels.Interpreter))
def test_any_interpreter_is_judged(said: Any, other: Any) -> None:
    known = {name: decode(wheels.Interpreter, as_json(one)) for name, one in (("n1", said), ("n2", other))}
    with contextlib.suppress(FleetError):
        tags.agree(known)
    assert set(tags.common_tags(known)) <= set(known["n1"]["tags"])
    known["n1"]["states"] = []
    error = node.refusal(known["n1"], [], False)
    assert error is None or error.message


@brief
@given(fitting(ports.Scanned), fitting(ports.Ended), st.booleans())
def test_any_listeners_are_told(first: Any, second: Any, force: bool) -> None:
    scanned, ended = decode(ports.Scanned, as_json(first)), decode(ports.Ended, as_json(second))
    listeners = [kill_port.Listener("n1", each, kill_port.why_spared(each, force)) for each in scanned["listeners"]]
    plan = kill_port.KillPlan(
        (HOST,), KillPort([80], grace=1.0, force=force), tuple(listeners), (Result("n1", True, 0),)
    )
    report = kill_port.report(plan, {"n1": Result("n1", True, 0, answer=Inside(ended))})
    assert report.as_json()["hosts"]["n1"]["listeners"] is not None


@brief
@given(st.lists(fitting(run.RunState), max_size=4))
def test_any_state_of_a_node_is_one(said: Any) -> None:
    state = ends.NodeState("n1", 0)
    for each in said:
        state.status = decode(run.RunState, as_json(each))
        assert isinstance(state.engine_code, int) and isinstance(state.began, float | int) and state.state is not None
