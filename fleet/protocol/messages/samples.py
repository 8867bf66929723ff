"""Defines a sample of a node's use. fleet/node/run/sample.py takes it; `fleet top` and a run's metrics.jsonl have
it."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.run import RunId
from fleet.protocol.messages.values import Count

Amount = Annotated[float, lambda number: 0 <= number < 1e18]
Rates = tuple[Amount | None, Amount | None]  # received and sent, bytes a second
Few = Annotated[str, lambda text: len(text) <= 64]

# power: watts. memory: bytes in use. temperature: degrees Celsius. clock: of the SMs, MHz. throttle: what slows it
# down. runs: those that compute on it. others: number of its processes that belong to no run, None if not all are
# known.
GpuSample = TypedDict(
    "GpuSample",
    {
        "index": Count,
        "uuid": str | None,
        "use": Amount | None,
        "power": Amount | None,
        "power_limit": Amount | None,
        "memory": Count | None,
        "memory_total": Count | None,
        "temperature": Amount | None,
        "clock": Amount | None,
        "throttle": list[Few] | None,
        "runs": list[RunId],
        "others": Count | None,
    },
)
_Sample = TypedDict(
    "_Sample",
    {
        "time": Annotated[float, lambda seconds: abs(seconds) < 1e12],
        "cpu": Amount | None,
        "load": Amount | None,
        "memory": Count | None,
        "memory_total": Count | None,
        "net": dict[Few, Rates],
        "ib": dict[Few, Rates],
        "gpus": list[GpuSample],
    },
)


class Sample(_Sample, total=False):
    """Holds a sample. cpu: percent of all CPUs. load: the mean of a minute. net, ib: by interface. run_cpu: CPUs that a
    run's threads had. run_delay: further CPUs that they were ready for. waiting: the run's connections: (own address,
    other address) as in /proc/net/tcp, and two shares of the checks. The first: data waited to be sent; the second:
    data waited to be read. None: there were too many connections."""

    run_cpu: Amount | None
    run_delay: Amount | None
    waiting: list[tuple[Few, Few, Amount, Amount]] | None


class Sampled(Sample):
    """A sample for `fleet top`. runs: the live runs on the node."""

    event: Literal["sample"]
    runs: list[RunId]


SampleSpec = TypedDict("SampleSpec", {"every": float, "count": int})
