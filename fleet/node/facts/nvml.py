"""Reads the state of GPUs from NVIDIA's management library by ctypes, without starting nvidia-smi.

Numbers and sizes of arguments are those of nvml.h. A value that a GPU or its driver does not know is None. Without the
library, the number of GPUs is 0."""

import ctypes
from contextlib import suppress

from fleet.node.base.types import Any

LIBRARY = "libnvidia-ml.so.1"
UINT, LONG = ctypes.c_uint, ctypes.c_ulonglong
MOST_GPUS, MOST_PROCESSES = 64, 256
# fleet's name; the function's name after nvmlDeviceGet; its arguments; the type of the numbers that it fills; the index
# of the number that fleet uses; the divisor that makes fleet's unit
VALUES = (
    ("use", "UtilizationRates", (), UINT * 2, 0, 1),
    ("power", "PowerUsage", (), UINT * 1, 0, 1000.0),
    ("power_limit", "EnforcedPowerLimit", (), UINT * 1, 0, 1000.0),
    ("memory", "MemoryInfo", (), LONG * 3, 2, 1),
    ("memory_total", "MemoryInfo", (), LONG * 3, 0, 1),
    ("temperature", "Temperature", (UINT(0),), UINT * 1, 0, 1),  # 0 selects the GPU's core
    ("clock", "ClockInfo", (UINT(1),), UINT * 1, 0, 1),  # 1 selects the clock of the SMs
    ("throttle", "CurrentClocksThrottleReasons", (), LONG * 1, 0, 1),
)
# bit -> reason why a GPU is slow. Bits 1 (idle) and 2 (clocks that a user has set) are missing, as no run is slower by
# these
THROTTLES = (
    *((0x4, "power cap"), (0x8, "hardware"), (0x10, "sync boost"), (0x20, "heat"), (0x40, "heat, hardware")),
    *((0x80, "power brake"), (0x100, "display")),
)


class Nvml:
    """Opens the library once, and calls its functions. count: the number of GPUs, 0 if the library or the driver is
    missing."""

    def __init__(self) -> None:
        self.library, found = None, (UINT * 1)()  # type: Any, Any
        with suppress(OSError):
            self.library = ctypes.CDLL(LIBRARY)
        there = self.call("nvmlInit_v2") and self.call("nvmlDeviceGetCount_v2", found)
        self.count = min(MOST_GPUS, found[0]) if there else 0

    def call(self, name: str, *arguments: "Any") -> bool:
        """Calls a function of the library. Returns whether the library has the function, and the call succeeded."""
        function = getattr(self.library, name, None)
        return function is not None and function(*arguments) == 0

    def gpu(self, index: int) -> "dict[str, Any]":
        """Returns the state of a GPU: the names in VALUES, "uuid", and "pids": the processes that compute on the GPU,
        None if unknown."""
        device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        there = self.call("nvmlDeviceGetHandleByIndex_v2", UINT(index), ctypes.byref(device))
        found: dict[str, Any] = {"index": index, "uuid": None, "pids": None}
        for name, function, given, kind, at, unit in VALUES:
            numbers: Any = kind()
            known = there and self.call("nvmlDeviceGet" + function, device, *given, numbers)
            found[name] = numbers[at] / unit if known and unit != 1 else numbers[at] if known else None
        if found["throttle"] is not None:
            found["throttle"] = [text for bit, text in THROTTLES if found["throttle"] & bit]
        if there and self.call("nvmlDeviceGetUUID", device, uuid, UINT(96)):
            found["uuid"] = uuid.value.decode("ascii", "replace")
        # for each process, the library writes its pid and its memory
        count, processes = (UINT * 1)(MOST_PROCESSES), (LONG * (2 * MOST_PROCESSES))()
        if there and self.call("nvmlDeviceGetComputeRunningProcesses", device, count, processes):
            found["pids"] = [processes[2 * each] & 0xFFFFFFFF for each in range(min(count[0], MOST_PROCESSES))]
        return found
