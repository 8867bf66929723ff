"""The fuzzers themselves: what is as it should be passes, and what is not is found and made short."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.fuzz import hostile, keys, sync_model
from tests.fuzz.mutants import MUTANTS, Mutant, applied
from tests.fuzz.sync_model import Case, make, run, shrink
from tests.fuzz.transport import Forker
from tests.fuzz.world import World


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    forker = Forker()
    yield forker
    forker.close()


SYNC = ("sync", "A", "n1:work", {}, {})


def test_a_plain_sync_is_as_the_table_has_it(forker: Forker) -> None:
    steps = [
        ("write", "A", "d/a.py", 9000, ""),
        ("link", "A", "l", "d"),
        SYNC,
        ("write", "n1:work", "d/ckpt", 8, ""),
        ("write", "A", "d/a.py", 8, ""),
        SYNC,
        ("remove", "A", "d"),
        SYNC,
    ]
    assert run(Case(0, {}, steps), forker) is None


@pytest.mark.parametrize("fault", [{"kill": 9}, {"cut": 10}, {"late": 0.0}])
def test_a_sync_that_is_cut_short_is_made_good_by_the_next(forker: Forker, fault: dict[str, float]) -> None:
    steps = [("write", "A", f"f{number}", 8, "") for number in range(5)]
    assert run(Case(0, {}, [*steps, ("sync", "A", "n1:work", {}, fault), SYNC]), forker) is None


def test_what_goes_wrong_is_found_and_made_short(forker: Forker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A "run" that the model takes for a part of fleet: it deletes what the node had."""
    plain = World.run_sync

    def and_delete(self: World, name: str, where: str, *rest: object) -> object:
        report = plain(self, name, where, *rest)  # type: ignore[arg-type]
        (self.place(where) / "mine").unlink(missing_ok=True)
        return report

    monkeypatch.setattr(World, "run_sync", and_delete)
    steps = [("write", "A", f"f{number}", 8, "") for number in range(6)]
    steps[3:3] = [("write", "n1:work", "mine", 8, ""), ("touch", "A", "f1")]
    case = Case(0, {"ahead": {"n1": 300}}, [*steps, SYNC, SYNC])
    found = run(case, forker)
    assert found is not None and "'mine' of n1:work" in found[0]
    small, text = shrink(case, forker, found[0])
    assert [step[0] for step in small.steps] == ["write", "sync"] and small.setup == {}, text


@pytest.mark.slow
@pytest.mark.parametrize(
    "hunt, first, seconds", [(sync_model.hunt, 5000, 30.0), (hostile.hunt, 1795659601, 25.0), (keys.hunt, 1, 25.0)]
)
def test_nothing_is_found(
    hunt: Callable[..., list[str]], first: int, seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some seconds of what `make fuzz` does for long, from the same seed on each time: what is found here, a change has
    brought. `make fuzz` begins with another one each time. The seeds are printed: each is a case."""
    found = hunt(first, seconds)
    with capsys.disabled():
        print("\n" + capsys.readouterr().out.strip().splitlines()[-1])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mend_can_be_taken_back(mutant: Mutant) -> None:
    """`python -m tests.fuzz.mutants` shows that the fuzzers find it then."""
    for name, text in applied(mutant).items():
        compile(text, name, "exec")


def test_a_seed_is_a_case() -> None:
    assert make(7) == make(7) != make(8)
