"""What a run that repeats another one does not find as it was, and what is asked for once more."""

from __future__ import annotations

from typing import Any

from fleet.ops.run.find.again import Recorded
from fleet.ops.run.plan.origin import differences
from fleet.requests.launch import Launch


def test_a_folder_with_a_space_in_the_command_that_brings_the_code_back() -> None:
    before = {"code": {"commit": "a" * 40, "diff": "code.diff"}, "logs": "/my runs/x"}
    ((_, hint),) = differences(before, {"code": {"commit": "b" * 40}})
    assert str(hint).endswith("&& git apply '/my runs/x/code.diff'")


def test_differences() -> None:
    def of(commit: str | None = "a" * 40, torch: str = "2.1", code: Any = None, **more: Any) -> dict[str, Any]:
        facts = {host: {"torch": {"version": torch}, "packages": more} for host in ("n1", "n2")}
        code = {"commit": commit, "folder": "/w", "dirty": False, **(code or {})}
        return {"code": code, "facts": facts, "fleet": {"version": "1"}, "logs": "runs/r"}

    changed = of(code={"sha256": "x", "dirty": True, "diff": "code.diff"})
    checkout = f"to have it as it was: git checkout {'a' * 12}"
    stashed = checkout.replace("git checkout", "git stash && git checkout")
    for before, now, said, hint in [
        (of(), of("b" * 40), f"the code in /w is at commit {'b' * 12}, and was at {'a' * 12}", checkout),
        (of(), changed, "the code in /w is at the same commit, with other changes", stashed),
        (changed, of(None), f"the code in /w is at commit none, and was at {'a' * 12}", None),
        (of(torch="2.0"), of(), "n[1-2]: torch is 2.1, and was 2.0", None),
        (of(a="1"), of(), "n[1-2]: a is not there, and was 1", None),
    ]:
        ((told, what),) = differences(before, now)
        assert told == said
        assert what == (hint or (f"{checkout} && git apply runs/r/code.diff" if before is changed else None))
    for before in ({}, of(), {**of(), "code": None}, of(None, code={"why": "git: too slow"})):
        assert list(differences(before, of())) == [], "nothing is known, or the same"


def test_a_variable_is_literal_or_expanded() -> None:
    launch = {"script": "x.py", "env": {"A": "1", "B": None}, "env_expand": {"C": "$D"}, "args": ["1"], "grace": 2.0}
    earlier = Recorded("r", {"launch": launch})
    asked = earlier.request({"env_expand": {"B": "$E"}, "env": {"C": "2"}, "grace": 3.0})
    expanded = {"B": "$E"}
    assert asked == Launch("x.py", ("1",), grace=3.0, env={"A": "1", "C": "2"}, env_expand=expanded, repeats="r")
