"""Measures, for `fleet check --bench`, how fast each idle GPU computes and copies, or the processors of a host without
GPUs. Runs other measuring programs the same way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fleet.codec import T, decode
from fleet.events import Notice
from fleet.model import Host, grouped
from fleet.node.facts.ask import NOT_HERE
from fleet.ops.pairs import Meeting
from fleet.ops.sessions import Sessions
from fleet.protocol.messages.facts import Benched, Facts, FreePort, Speed
from fleet.rules.gpu_state import HELD
from fleet.rules.seen import has_none
from fleet.transport.program import Program, first_message, last_message

BENCH_SECONDS = 90.0
SECONDS = 5.0  # a measurement takes so long, so that the clocks have settled (FIELD: dlrover's matmul takes as long)
LATE_SECONDS = 60.0  # for two measurements and the start of torch; a slower GPU has failed
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # one thread a core
# Runs in the training interpreter, with a thread for each GPU. All threads compute at once, as in a run, because GPUs
# share power and air. On processors, a thread for each core multiplies, and their rates are added up. Random numbers
# need as much power as those of a model. A copy counts twice: it reads and writes.
BENCH = (
    NOT_HERE
    + r"""
import json, os, threading, time
import torch
gpus, seconds, late = json.loads(sys.argv[1])
cores = len(os.sched_getaffinity(0))
found = {}
def rate(work, once, wait, times):
    once()
    wait()
    began, count, took = time.monotonic(), 0, 0.0
    while took < seconds:
        for _ in range(times):
            once()
        wait()
        count += times
        took = time.monotonic() - began
    return work * count / took
def measure(name, device, size, kind, many, wait, times):
    try:
        if device != "cpu":
            torch.cuda.set_device(device)
            half = torch.cuda.get_device_capability(device)[0] >= 8
            size, kind = (8192, torch.bfloat16) if half else (4096, torch.float32)
        a, b, c = (torch.randn(size, size, device=device).to(kind) for _ in range(3))
        tflops = rate(2e-12 * size ** 3, lambda: torch.mm(a, b, out=c), wait, times)
        a, b = (torch.zeros(many, dtype=torch.uint8, device=device) for _ in range(2))
        found[name] = {"tflops": tflops, "gbytes": rate(2e-9 * many, lambda: b.copy_(a), wait, times)}
    except Exception as error:
        found[name] = {"error": (str(error) or type(error).__name__).strip().splitlines()[0][:120]}
def unseen():
    # CUDA shows the devices before the first one that it cannot use, and numbers none behind it
    try:
        torch.cuda.init()
        count = torch._C._cuda_getDeviceCount()
    except Exception as error:
        return (str(error) or type(error).__name__).strip().splitlines()[0][:120]
    return None if count == len(gpus) else "torch sees %d of %d GPUs that are idle" % (count, len(gpus))
wrong = unseen() if gpus else None
if wrong:
    print()
    print(json.dumps({"host": {"error": wrong}}))
    sys.stdout.flush()
    os._exit(0)
if gpus:
    each = [(str(gpu), n, 0, None, 1 << 29, torch.cuda.synchronize, 8) for n, gpu in enumerate(gpus)]
else:
    each = [(str(n), "cpu", 512, torch.float32, 1 << 24, lambda: None, 1) for n in range(cores)]
threads = [threading.Thread(target=measure, args=args, daemon=True) for args in each]
for thread in threads:
    thread.start()
until = time.monotonic() + late
for thread in threads:
    thread.join(max(0.0, until - time.monotonic()))
result = {args[0]: found.get(args[0], {"error": "no answer within %g s" % late}) for args in each}
failed = [one for one in result.values() if "error" in one]
if not gpus:
    result = {"host": failed[0] if failed else
              {name: sum(one[name] for one in result.values()) for name in ("tflops", "gbytes")}}
print()
print(json.dumps(result))
sys.stdout.flush()
os._exit(0)
"""
)


class Order(NamedTuple):
    """Describes a program that a host runs. program: its name, or None for the training interpreter."""

    program: str | None
    argv: list[str]
    env: Mapping[str, str] = {}
    delay: float = 0.0


def bench(hosts: Sequence[Host], orders: Any, specs: Mapping[str, Any], sessions: Sessions) -> dict[str, Benched]:
    """Runs a program on all hosts at once, and returns how it ended on each. orders: a function that takes the free
    port of each host that is ready, and returns the Order of each."""
    ports, meeting = dict[str, int](), Meeting({host.name for host in hosts})

    def task(host: Host) -> Benched:
        try:
            with Program(sessions.get(host), "preflight.bench", specs[host.name]) as program:
                ports[host.name] = first_message(program, FreePort, timeout=BENCH_SECONDS, cancel=cancel)["port"]
                meeting.arrive(host.name)
                meeting.wait(BENCH_SECONDS, cancel)
                order = orders(ports).get(host.name, Order("false", []))
                program.send({"op": "run", **order._asdict()})
                return last_message(program, Benched, timeout=BENCH_SECONDS, cancel=cancel)
        finally:
            meeting.arrive(host.name)

    cancel = sessions.runtime.cancel
    ended, errors = sessions.each(tuple(hosts), task, "measuring")
    return {**ended, **{name: {"status": None, "out": "", "why": str(error)} for name, error in errors.items()}}


def figures(ended: Benched, kind: type[T]) -> T | None:
    """Returns the last line of a program's output, decoded from JSON, no matter how the program ended. Returns None if
    that line does not hold a `kind`."""
    try:
        return decode(kind, json.loads(ended["out"].splitlines()[-1]))
    except (ValueError, LookupError, RecursionError):
        return None


def measure(hosts: Sequence[Host], raw: Mapping[str, Facts], specs: Mapping[str, Any], sessions: Sessions) -> None:
    """Adds "speeds" to the facts of hosts. Emits a notice for GPUs and hosts that are not measured."""
    emit, chosen = sessions.runtime.emit, dict[str, list[Any]]()
    for host in hosts:
        found, why = idle(host, raw[host.name])
        if why:
            emit(Notice("warning", f"not measured: {why}", host.name, "again when nothing uses it"))
        if found is not None:
            chosen[host.name] = found
    orders = {
        name: Order(
            None,
            ["-c", BENCH, json.dumps([[gpu["index"] for gpu in gpus], SECONDS, LATE_SECONDS])],
            {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu["uuid"]) for gpu in gpus)} if gpus else ONE_THREAD,
        )
        for name, gpus in chosen.items()
    }
    ended = bench([host for host in hosts if host.name in orders], lambda ports: orders, specs, sessions)
    for name, each in ended.items():
        speeds = figures(each, dict[str, Speed])
        measured = {str(gpu["index"]): gpu["index"] for gpu in chosen[name]}
        if not measured or (speeds and "error" in speeds.get("host", {})):  # one result for the whole host
            measured = {"host": None}
        if speeds and speeds.keys() >= measured.keys():
            raw[name]["speeds"] = [{**speeds[key], "gpu": gpu} for key, gpu in measured.items()]
        else:
            emit(Notice("warning", f"not measured: {each['why'] or 'the program ended without a figure'}", name))


def idle(host: Host, facts: Facts) -> tuple[list[Any] | None, str | None]:
    """Returns (the GPUs to measure, why others are left out). The GPUs are [] if the processors of a host without GPUs
    are to be measured, and None if nothing can be measured. A GPU that is not known to be idle counts as in use."""
    gpus, torch = facts.get("gpus"), facts.get("torch") or {}
    reasons = (
        (not torch, "no torch in its training interpreter"),
        # nvidia-smi may be missing, and does not list AMD's GPUs
        (not gpus and (gpus is None or torch.get("hip") or not has_none(facts)), "its GPUs are not known"),
        ("runs" not in facts, "it is not known whether runs are live there"),
        (gpus and not torch.get("cuda"), "its torch is not built for its GPUs"),
    )
    text = next((text for applies, text in reasons if applies), None)
    if text is not None or gpus is None:
        return None, text
    processes = facts.get("gpu_processes")
    used, listed = {process["gpu"] for process in processes or ()}, {gpu["uuid"] for gpu in gpus} - {None}
    selected = [gpu for gpu in gpus if host.devices is None or gpu["index"] in host.devices]

    def why(gpu: Mapping[str, Any]) -> str | None:
        if gpu["uuid"] in used - {None} or gpu.get("used", 0) > HELD * (gpu["memory"] or 0) > 0:
            return "in use"
        # if a process uses a GPU that is not in the list, it may use any of the listed ones
        if processes is None or not gpu["uuid"] or not gpu["memory"] or "used" not in gpu or used - listed:
            return "it is not known who uses it"
        is_whole = gpu.get("mode") != "Prohibited" and not gpu.get("mig") and not gpu.get("reset")
        return None if is_whole else "it may not compute as a whole"

    busy = grouped((text, str(gpu["index"])) for gpu in selected if (text := why(gpu)))
    left = [gpu for gpu in selected if why(gpu) is None]
    found = left if left or not gpus else None
    return found, "; ".join(f"GPU {', '.join(each)}: {text}" for text, each in busy.items()) or None
