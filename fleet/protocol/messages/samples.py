"""A sample of what a node does: fleet.node.run.sample.py takes it, `fleet top` and a run's metrics.jsonl have it."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.run import RunId
from fleet.protocol.messages.values import Count

Amount = Annotated[float, lambda number: 0 <= number < 1e18]
Rates = tuple[Amount | None, Amount | None]  # received and sent, bytes a second
Few = Annotated[str, lambda text: len(text) <= 64]

# power: watts. memory: bytes in use. temperature: degrees Celsius. clock: of the SMs, MHz. throttle: what slows it
# down. runs: that compute on it; others: how many processes of no run do, None where not all of them are known.
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
    """cpu: percent of all CPUs. load: the mean of a minute. net, ib: by interface. run_cpu, run_delay: CPUs that a
    run's threads had, and those more that they were ready for. waiting: the run's connections, each from an
    address, to an address (as /proc/net/tcp has them), with two shares of the looks: at which data waited to be sent,
    and at which it waited to be read. None: they were too many to look at."""

    run_cpu: Amount | None
    run_delay: Amount | None
    waiting: list[tuple[Few, Few, Amount, Amount]] | None


class Sampled(Sample):
    """runs: that are live on the node."""

    event: Literal["sample"]
    runs: list[RunId]


SampleSpec = TypedDict("SampleSpec", {"every": float, "count": int})
