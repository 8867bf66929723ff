"""The host, or the link, that the others of a run wait for, by samples; none where it is not sure which."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fleet.answers.runs import Slow
from fleet.protocol.messages.samples import Sample
from fleet.rules.slow_host import point_of, slow_host

RUN = "train-20260101-000000-0000"
HOSTS = ("a", "b", "c", "d")
Samples = dict[str, list[Sample]]


def gpu(use: float, power: float | None, clock: float = 1900, throttle: list[str] | None = None, **more: Any) -> Any:
    return {
        "index": 0,
        "uuid": "GPU-x",
        "use": use,
        "power": power,
        "power_limit": 700.0,
        "memory": 1,
        "runs": [RUN],
        "memory_total": 2,
        "temperature": 60,
        "clock": clock,
        "throttle": throttle or [],
        "others": 0,
        **more,
    }


def samples(count: int = 6, hosts: tuple[str, ...] = HOSTS, **own: Callable[[str], Any]) -> Samples:
    """Samples of hosts at work. own: of a field, what each host has in it."""
    usual: dict[str, Callable[[str], Any]] = {
        "cpu": lambda host: 40.0,
        "gpus": lambda host: [gpu(98, 600)],
        "run_cpu": lambda host: 1.0,
        "run_delay": lambda host: 0.02,
        "net": lambda host: {"eth0": [2e7, 2e7]},
        "waiting": ring(dict.fromkeys(hosts, 0.2), hosts),
    }
    bare = {"load": 1.0, "memory": 1, "memory_total": 2, "ib": {}}
    made = {**usual, **own}
    return {
        host: [{"time": 10.0 * at, **bare, **{key: of(host) for key, of in made.items()}} for at in range(count)]  # type: ignore[typeddict-item]
        for host in hosts
    }


def ring(
    waits: dict[str, float], hosts: tuple[str, ...] = HOSTS, unread: dict[str, float] | None = None
) -> Callable[[str], Any]:
    """Each host sends to the next one. waits: for how much of the time its data waits. unread: and what it received."""
    after = dict(zip(hosts, hosts[1:] + hosts[:1], strict=True))
    before = {to: one for one, to in after.items()}
    return lambda host: [
        (f"@{host}", f"@{after[host]}", waits[host], 0.0),
        (f"@{host}", f"@{before[host]}", 0.0, (unread or {}).get(host, 0.0)),
        (f"@{host}", "@head", 0.0, 0.0),
    ]


def judged(given: Samples, ranks: int = 1) -> Slow | None:
    return slow_host({host: [point_of(sample, RUN, ranks) for sample in each] for host, each in given.items()})


def with_one(given: Samples, host: str, wait: tuple[str, str, float, float]) -> Samples:
    """The same, with what waited during one sample only."""
    given[host][2]["waiting"] = [*(given[host][2]["waiting"] or ()), wait]
    return given


def later(given: Samples, host: str, seconds: float) -> Samples:
    given[host] = [{**it, "time": it["time"] + seconds} for it in given[host]]
    return given


def one(host: str, own: Any, others: Any) -> Callable[[str], Any]:
    return lambda name: own if name == host else others


def fifth(host: str) -> float:
    return 0.2


def none(host: str) -> list[Any]:
    return []


def no_peer(host: str) -> list[Any]:
    return [(f"@{host}", "@head", 0.0, 0.0)]


LINK = {"a": 0.1, "b": 0.3, "c": 0.98, "d": 0.1}
CASES: dict[str, tuple[Samples, list[str] | None]] = {
    "well": (samples(), None),
    "no GPU": (samples(gpus=lambda host: []), None),
    "a fifth of its CPUs": (samples(gpus=none, run_cpu=fifth, run_delay=one("c", 0.8, 0.05)), ["c"]),
    "of two, too": (samples(hosts=("a", "b"), gpus=none, run_cpu=fifth, run_delay=one("b", 0.8, 0.05)), ["b"]),
    "CPUs are short everywhere": (samples(gpus=none, run_cpu=fifth, run_delay=one("c", 0.8, 0.7)), None),
    "two lack CPUs": (samples(gpus=none, run_delay=lambda host: 2.0 if host in "ab" else 0.0), None),
    "GPUs wait for its CPUs": (
        samples(gpus=one("c", [gpu(60, 400)], [gpu(99, 250)]), run_cpu=fifth, run_delay=one("c", 0.8, 0.05)),
        ["c"],
    ),
    "it lacks CPUs, but no GPU waits": (samples(run_cpu=fifth, run_delay=one("c", 0.8, 0.05)), None),
    "it lacks CPUs, and all GPUs are bound by memory": (
        samples(gpus=lambda host: [gpu(98, 200)], run_cpu=fifth, run_delay=one("c", 0.8, 0.05)),
        None,
    ),
    "it lacks CPUs, whose GPUs is not known": (
        samples(gpus=lambda host: [gpu(98, 200, runs=[])], run_cpu=fifth, run_delay=one("c", 0.8, 0.05)),
        None,
    ),
    "its GPUs wait for data": (samples(gpus=one("b", [gpu(55, 350)], [gpu(99, 250)])), ["b"]),
    "of two it is not sure": (samples(hosts=("a", "b"), gpus=one("b", [gpu(55, 350)], [gpu(99, 250)])), None),
    "use is uneven everywhere": (
        samples(gpus=lambda host: [gpu({"a": 50, "b": 60, "c": 70, "d": 80}[host], 400)]),
        None,
    ),
    "it waits itself": (samples(gpus=one("c", [gpu(0, 90)], [gpu(99, 650)])), None),
    "it waits itself, and power is low": (samples(gpus=one("c", [gpu(0, 90)], [gpu(99, 250)])), None),
    "roles": (samples(gpus=one("d", [gpu(100, 650)], [gpu(100, 230)])), None),
    "GPUs of others": (
        samples(gpus=one("b", [gpu(55, 350), gpu(0, 1, runs=[])], [gpu(99, 250), gpu(0, 1, runs=[])])),
        ["b"],
    ),
    "a limit of one GPU is not known": (
        samples(gpus=one("b", [gpu(55, 350)], [gpu(99, 650), gpu(99, None)])),
        None,
    ),
    "all wait": (samples(gpus=lambda host: [gpu(100, 230)]), None),
    "heat": (samples(gpus=one("a", [gpu(99, 300, 1095, ["heat"])], [gpu(99, 600)])), ["a"]),
    "the power cap is health": (samples(gpus=one("a", [gpu(99, 700, 1095, ["power cap"])], [gpu(99, 600)])), None),
    "a link": (samples(waiting=ring({"a": 0.1, "b": 0.3, "c": 0.98, "d": 0.1})), ["c", "d"]),
    "both links of a host": (samples(waiting=ring({"a": 0.1, "b": 0.95, "c": 0.98, "d": 0.1})), ["c"]),
    "one transfer of 10 s": (with_one(samples(waiting=no_peer), "c", ("@c", "@d", 1.0, 0.0)), None),
    "one transfer, while others have links": (with_one(samples(), "c", ("@c", "@a", 1.0, 0.0)), None),
    "its receiver does not read": (
        samples(waiting=ring({"a": 0.1, "b": 0.3, "c": 0.98, "d": 0.1}, unread={"d": 0.9})),
        None,
    ),
    "more connections than were looked at": (
        samples(waiting=lambda host: None if host == "a" else ring(LINK)(host)),
        None,
    ),
    "how much is sent is not known": (
        samples(waiting=ring(LINK), net=one("c", {"eth0": [1, None]}, {"eth0": [2e7, 2e7]})),
        None,
    ),
    "two hosts of one address": (
        samples(waiting=lambda host: [("@bridge", "@d", 0.98, 0.0), ("@d", "@bridge", 0.0, 0.0)]),
        None,
    ),
    "its samples are of another time": (
        later(samples(gpus=one("b", [gpu(55, 350)], [gpu(99, 250)])), "b", -60.0),
        None,
    ),
    "clocks of hosts differ little": (
        later(samples(gpus=one("b", [gpu(55, 350)], [gpu(99, 250)])), "b", -8.0),
        ["b"],
    ),
    "the network is busy": (samples(waiting=ring({"a": 0.8, "b": 0.9, "c": 0.98, "d": 0.7})), None),
    "one sends to all": (
        samples(
            waiting=ring({**dict.fromkeys(HOSTS, 0.0), "a": 0.9}), net=one("a", {"eth0": [1, 6e7]}, {"eth0": [2e7, 1]})
        ),
        None,
    ),
    "two signs of two hosts": (
        samples(run_delay=one("a", 3.0, 0.02), gpus=one("b", [gpu(55, 350)], [gpu(99, 250)])),
        None,
    ),
    "too few samples": (samples(4, gpus=none, run_delay=one("c", 0.8, 0.05), run_cpu=fifth), None),
    "not known of one": (samples(gpus=none, run_cpu=fifth, run_delay=one("c", 0.8, None)), None),
}


@pytest.mark.parametrize("case", CASES)
def test_who_is_named(case: str) -> None:
    given, expected = CASES[case]
    found = judged(given)
    assert (found and list(found.hosts)) == expected, found
    assert found is None or "elsewhere" in found.evidence


def test_which_gpus_are_the_runs_is_not_known() -> None:
    given = samples(gpus=one("b", [gpu(55, 350)], [gpu(99, 250)]))
    assert judged(given, ranks=2) is None and judged(given) is not None


def test_no_run_is_blamed_for_chance() -> None:
    """Hosts differ by chance, lastingly and from sample to sample; and what befalls runs that wait for no host."""
    for seed in range(400):
        rng = random.Random(seed)
        base, found, waits = rng.uniform(20, 100), rng.uniform(0, 0.5), rng.random()
        lasting = {host: rng.gauss(0, 1) for host in HOSTS}
        power = rng.uniform(1.5, 6.5) * base
        drawn: dict[str, Any] = {
            "gpus": lambda host: [
                gpu(
                    min(100.0, max(0.0, base + 6 * lasting[host] + rng.gauss(0, 4))),  # noqa: B023
                    max(60.0, power * (1 + 0.06 * lasting[host]) + rng.gauss(0, 20)),  # noqa: B023
                )
            ],
            "run_delay": lambda host: max(0.0, found + 0.1 * lasting[host] + rng.gauss(0, 0.1)),  # noqa: B023
            "waiting": lambda host: ring(
                {it: min(1.0, max(0.0, waits + 0.1 * lasting[it] + rng.uniform(-0.2, 0.2))) for it in HOSTS}  # noqa: B023
            )(host),
        }
        given = samples(rng.randrange(5, 30), **drawn)
        odd = rng.choice(HOSTS)
        befalling = rng.sample(("transfer", "done", "stranger", "earlier", "loader"), rng.randrange(3))
        for befalls in sorted(befalling, key="done".__eq__):  # at last: what is done lacks no CPUs
            for at, sample in enumerate(given[odd]):
                if befalls == "transfer" and at < 2:
                    other = rng.choice([host for host in HOSTS if host != odd])
                    sample["waiting"] = [*(sample["waiting"] or ()), (f"@{odd}", f"@{other}", 1.0, 0.0)]
                elif befalls == "done":
                    sample.update({"gpus": [gpu(0, 90)], "run_delay": 0.0})
                elif befalls == "stranger":
                    sample["gpus"] = [{**it, "runs": []} for it in sample["gpus"]] + [gpu(20, 650, runs=[])]
                elif befalls == "loader":
                    sample["run_delay"] = 3.0
                elif befalls == "earlier":
                    sample["time"] -= 10.0 * len(given[odd])
                    sample.update({"gpus": [gpu(50, 350)], "run_delay": 3.0})
        assert (judged_ := judged(given)) is None, (seed, judged_)
