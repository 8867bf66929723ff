"""A stand-in for nvidia-smi that replays a recording (tests/node/nvidia-smi/recordings.yaml), edited or as it is."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from fleet.node.facts import gpus
from fleet.node.facts.tools import Tools
from fleet.node.run.start import kernel_log
from fleet.node.run.start.kernel_log import KernelLog
from fleet.protocol.gpu_fields import GPU_FIELDS

RECORDINGS = {
    each["name"]: {**each, "cells": {**each["cells"].pop("<<", {}), **each["cells"]}}
    for each in yaml.load((Path(__file__).parent / "node/nvidia-smi/recordings.yaml").read_text(), yaml.BaseLoader)
}
FIELDS = [name for _, _, names, _, _ in GPU_FIELDS for name in names]
PROGRAM = r"""
import json, sys
machine, argv = json.load(open(sys.argv[0] + ".json")), sys.argv[1:]
with open(sys.argv[0] + ".asked", "a") as asked:
    print(argv[0], file=asked)
def table(rows, names):
    for name in names:
        if name not in machine["known"]:
            print('Field "%s" is not a valid field to query.' % name)
            sys.exit(2)
    for row in rows:
        print(", ".join(row.get(name, "[N/A]") for name in names))
for option in argv:
    if option == "--help-query-gpu":
        print("List of valid properties to query for the switch \"--query-gpu=\":\n")
        print("".join('"%s"\nWhat it means.\n\n' % name for name in machine["known"]))
    elif option.startswith("--query-gpu="):
        table(machine["gpus"], option.partition("=")[2].split(","))
    elif option.startswith("--query-remapped-rows="):
        machine["known"] = option.partition("=")[2].split(",")
        table(machine["remapped"], machine["known"])
    elif option.startswith("--query-compute-apps="):
        print("\n".join(machine["apps"]))
    elif option in ("-s", "-e"):
        print("\n".join(machine["nvlink"][option]))
"""


@dataclass
class Machine:
    """A recorded host, and what is done to it. cells: of the GPU of that index. links: (active, errors). lines: of the
    kernel's log, 600 s ago."""

    recording: str
    gpu: int = 0
    cells: dict[str, str] = field(default_factory=dict)
    active: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    manager: bool | None = None

    @property
    def recorded(self) -> dict[str, Any]:
        return RECORDINGS[self.recording]

    @property
    def count(self) -> int:
        return int(self.recorded["count"])

    def document(self) -> dict[str, Any]:
        """What the stand-in prints."""
        recorded = copy.deepcopy(self.recorded)
        rows, remapped, states, errors = [], [], [], []
        for index in range(self.count):
            own = {"index": str(index), "uuid": f"GPU-{index}", "gpu_uuid": f"GPU-{index}", "serial": f"100{index}"}
            own["pci.bus_id"] = f"00000000:{16 + 16 * index:02X}:00.0"
            edits = self.cells if index == self.gpu else {}
            row = {**recorded["cells"], **own, **edits}
            if "clocks_event_reasons.active" in row:
                row["clocks_throttle_reasons.active"] = row["clocks_event_reasons.active"]
            rows.append(row)
            if "remapped" in recorded:
                remapped.append({**recorded["remapped"], **own, **edits})
            header = f"GPU {index}: {recorded['cells']['name']} (UUID: GPU-{index})"
            links = recorded.get("links", {"active": "0", "speed": ""})
            active, changed = int(links["active"]), index == self.gpu and self.active is not None
            now = (self.active or 0) if changed else active
            speeds = [links["speed"]] * now + ["<inactive>"] * (active - now + int(links.get("inactive", 0)))
            states += [header, *(f"\t Link {link}: {speed}" for link, speed in enumerate(speeds))]
            errors.append(header)
            for link in range(0 if links.get("silent") else now):
                counted = self.errors if index == self.gpu and link == 3 else {}
                errors += [
                    f"\t Link {link}: {kind} Errors: {counted.get(kind, 0)}" for kind in ("Replay", "Recovery", "CRC")
                ]
        return {
            "known": [name for name in FIELDS if name not in recorded["unknown"]],
            "gpus": rows,
            "remapped": remapped,
            "nvlink": {"-s": states, "-e": errors},
            "apps": [each.format(uuid="GPU-0") for each in recorded.get("apps", ())],
        }

    def facts(self, folder: Path, *, health: bool = True) -> dict[str, Any]:
        """What a node reports of it. health: to `check`."""
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "nvidia-smi"
        program.write_text(f"#!{sys.executable} -IS\n{PROGRAM}")
        program.chmod(0o755)
        (folder / "nvidia-smi.json").write_text(json.dumps(self.document()))
        tools = Tools(
            {"python": None, "activate": None, "workdir": None, "env": {"PATH": f"{folder}:{os.environ['PATH']}"}}
        )
        tools.activate()
        found = {**gpus.gpus(tools), **gpus.gpu_processes(tools)}
        more = {**gpus.gpu_health(tools), **gpus.nvlinks(tools), "xids": self.xids(folder)} if health else {}
        for process in found["gpu_processes"]:
            process["command"] = "nvidia-cuda-mps-server"
        manager = self.manager if self.manager is not None else {"true": True}.get(self.recorded.get("manager", ""))
        if health and manager is not None:
            more["fabric_manager"] = manager
        return {**found, **more}

    def xids(self, folder: Path) -> Any:
        stamp = time.monotonic() - 600
        (folder / "log").write_text("".join(f"[{stamp:.6f}] {line}\n" for line in self.lines))
        with patch.object(kernel_log, "READERS", (["cat", str(folder / "log")],)):
            return KernelLog(0.0, kmsg="/nonexistent").xids()
