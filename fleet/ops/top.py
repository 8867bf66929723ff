"""Runs `fleet top`: samples the use of the hosts, over one connection to each."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from fleet import fanout
from fleet.answers.hosts import HostSampled
from fleet.each import failed, for_each_host
from fleet.errors import FleetError, Interrupted, UsageError
from fleet.model import Host, Report, Result, exit_code_of
from fleet.ops.plans import RequestPlan
from fleet.ops.run.find.find import find, warn_of_missing
from fleet.ops.run.find.here import chosen
from fleet.ops.run.follow.follow import pause_after
from fleet.protocol.frames import MESSAGE
from fleet.protocol.messages.samples import Sampled, SampleSpec
from fleet.requests.runs import Top
from fleet.rules.gpu_use import is_cold, is_free
from fleet.runtime import Runtime
from fleet.transport.program import SILENCE_SECONDS, Program

RETRY_SECONDS, PING_SECONDS = 2.0, 5.0


def run(plan: RequestPlan[Top], runtime: Runtime) -> Report:
    """Samples the hosts, or those of a run if one is named. If no number of samples is given, it goes on until an
    interrupt, and tries hosts that do not answer again and again."""
    request, hosts = plan.request, plan.hosts
    if request.run is not None:
        runs, answers = find(plan.inventory, runtime, live=False)
        found = chosen(request.run, runs, answers, request.runs)
        if not found.live:
            raise UsageError(f"run {found.run_id} is over: {found.state}", hint=f"fleet logs {found.run_id}")
        warn_of_missing(found, answers, runtime.emit)
        hosts = tuple(found.hosts.values())
    spec: SampleSpec = {"every": request.every, "count": request.count}

    def one(host: Host) -> Result:
        found: HostSampled | FleetError = HostSampled()
        since = runtime.clock.monotonic()
        while True:
            try:
                with (
                    closing(runtime.transport.connect(host, runtime.cancel)) as session,
                    Program(session, "run.sample", spec) as program,
                ):
                    silence, cancel = SILENCE_SECONDS + request.every, runtime.cancel
                    for frame in program.frames(silence=silence, cancel=cancel, poll=1.0, ping=PING_SECONDS):
                        if frame.kind == MESSAGE:
                            since, found = runtime.clock.monotonic(), answer_of(frame.decode(Sampled))
                            request.each(host.name, found)
                break
            except FleetError as error:
                if request.count:
                    raise
                if isinstance(error, Interrupted):
                    break
                found = error.but(host=host.name)
                request.each(host.name, found)
                pause = pause_after(runtime.clock.monotonic() - since, RETRY_SECONDS)
                runtime.clock.wait(runtime.cancel, pause)
        return failed(host, found) if isinstance(found, FleetError) else Result(host.name, True, 0, answer=found)

    most = runtime.fanout if request.count else len(hosts)
    fanout.check_limits(len(hosts), most)
    results = for_each_host(hosts, replace(runtime, fanout=most), one, "sampling")
    return Report("top", results, exit_code_of(results))


def answer_of(sample: Sampled) -> HostSampled:
    taken = {name: value for name, value in sample.items() if name != "event"}
    gpus = sample["gpus"]
    return HostSampled(
        taken, [gpu["index"] for gpu in gpus if is_free(gpu)], [gpu["index"] for gpu in gpus if is_cold(gpu)]
    )
