"""Queries nvidia-smi for the GPUs, their state and health, the processes on them, and the NVLinks between them."""

import glob
import os
import re

from fleet.node.base.processes import pids, read_file
from fleet.node.base.types import Any
from fleet.node.facts.ask import last_line, run
from fleet.node.facts.tools import Tools
from fleet.protocol.gpu_fields import BASE, BASIC, GPU_FIELDS, ROWS

INFOROM = 14  # nvidia-smi's exit code if an infoROM is damaged, and everything else is fine
FLAGS = {"Yes": True, "Enabled": True, "No": False, "Disabled": False}
PATTERNS = {
    "text": r"(?!\[|N/A$|Not Supported$)(.+)$",
    "count": r"(\d{1,18})$",
    "mib": r"(\d{1,12})$",
    "number": r"(-?\d{1,9}(?:\.\d{1,9})?)$",
    "bits": r"(0x0*[0-9a-fA-F]{1,15})$",
}
LINK = r" *\t* *Link \d+: (<inactive>|[\d.]+ GB/s|(Replay|Recovery|CRC)[\w ]* Errors: (\d{1,18}))"
FIRST_PID_SPACE = 0xEFFFFFFC  # inode of the machine's first pid namespace; a container with an own one has another


def value_of(kind: str, cell: str) -> "Any":
    """Returns the value of a cell of nvidia-smi's output. Returns None if nvidia-smi does not know the value: the cell
    is "[N/A]", "[Unknown Error]" or similar. kind: the field's type, see protocol/gpu_fields.py."""
    if kind == "flag":
        return FLAGS.get(cell)
    cell = re.sub(r"^(?:state|status) +", "", cell)  # as in "state  Completed" of the fabric's fields
    found = re.match(PATTERNS[kind], cell)
    if found is None or kind == "text":
        return found and found.group(1)
    if kind == "bits":
        return int(found.group(1), 16)
    return float(found.group(1)) if kind == "number" else int(found.group(1)) << (20 if kind == "mib" else 0)


def ask(tools: Tools, what: str, fields: "list[tuple[str, str, str]]") -> "tuple[list[dict[str, Any]], str | None]":
    """Queries nvidia-smi. Returns ([name -> value of the known fields, for each line of output], the error message or
    None). Returns ([], None) if there is no nvidia-smi. what: "gpu", "compute-apps" or "remapped-rows", the kind of
    query. fields: (name in the result, type, nvidia-smi's name) of each field; the first one must be a number."""
    path = tools.tool("nvidia-smi")
    if path is None:
        return [], None
    query = "--query-%s=%s" % (what, ",".join(each for _, _, each in fields))
    status, out, err = run([path, query, "--format=csv,noheader,nounits"], tools.env)
    answer = []
    for cells in ([cell.strip() for cell in line.split(",")] for line in out.splitlines()):
        if len(cells) == len(fields) and cells[0].isdigit():
            values = [(name, value_of(kind, cell)) for (name, kind, _), cell in zip(fields, cells)]
            known = {name: value for name, value in values if value is not None}
            answer.append(dict(known, reset=any("requires reset" in cell for cell in cells)))
    warned = status == INFOROM and bool(out.strip())  # a damaged infoROM harms no run
    return answer, (last_line(err, out) or "nvidia-smi: exit status %d" % status) if status and not warned else None


def gpus(tools: Tools) -> "dict[str, Any]":
    """Returns the basic facts of the GPUs, by one query."""
    # nvidia-smi prints no GPU at all if the driver, too old or too new, does not know a field. So this tries the last
    # name of each field, then the preferred name, then fewer fields
    for name_of, count in ((-1, BASIC), (0, BASIC), (0, BASE)):
        found, error = ask(tools, "gpu", [(name, kind, names[name_of]) for name, kind, names, *_ in GPU_FIELDS[:count]])
        if found:
            break
    # after an error the number of GPUs is unknown, not 0
    return dict({"gpus": whole(found)} if found or not error else {}, gpu_error=error)


def gpu_health(tools: Tools) -> "dict[str, Any]":
    """Returns all facts that the driver knows of the GPUs. Returns {} if there are no GPUs. It may take seconds for
    each GPU."""
    path = tools.tool("nvidia-smi")
    # one field that the driver does not know would make the whole query fail
    listed = re.findall(r'"([\w.]+)"', run([path, "--help-query-gpu"], tools.env)[1]) if path else []
    known = [(name, kind, [each for each in names if each in listed]) for name, kind, names, _, _ in GPU_FIELDS]
    found, _ = (
        ask(tools, "gpu", [(name, kind, names[0]) for name, kind, names in known if names]) if listed else ([], None)
    )
    remapped = remapped_rows(tools) if found and ROWS + "pending" not in listed else {}
    answer = [dict(remapped.get(gpu.get("uuid"), {}), **gpu) for gpu in whole(found)]
    return {"gpus": answer} if answer else {}


def whole(found: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    """Returns the GPUs with all basic fields, of which unknown ones are None, and with their device numbers."""
    blank, known = dict.fromkeys(name for name, *_ in GPU_FIELDS[:BASE]), minors()
    return [dict(blank, **gpu, **known.get(gpu.get("uuid"), {})) for gpu in found]


def minors() -> "dict[Any, dict[str, int]]":
    """Returns UUID -> {"minor": number of the GPU's device file}. The number may differ from the GPU's index after
    another GPU has failed."""
    texts = map(read_file, glob.glob("/proc/driver/nvidia/gpus/*/information"))
    found = [re.search(rb"GPU UUID:\s*([\w-]+).*\nDevice Minor:\s*(\d{1,9})\n", text, re.DOTALL) for text in texts]
    return {each.group(1).decode(): {"minor": int(each.group(2))} for each in found if each}


def remapped_rows(tools: Tools) -> "dict[Any, dict[str, Any]]":
    """Returns UUID -> the GPU's fields about remapped memory rows. Older drivers need a separate query for them."""
    fields = [(name, kind, names[0]) for name, kind, names, _, _ in GPU_FIELDS if names[0].startswith(ROWS)]
    found, _ = ask(tools, "remapped-rows", fields + [("uuid", "text", "gpu_uuid")])
    return {row.get("uuid"): row for row in found}


def gpu_processes(tools: Tools) -> "dict[str, Any]":
    fields = [("pid", "count", "pid"), ("gpu", "text", "gpu_uuid"), ("memory", "mib", "used_memory")]
    found, error = ask(tools, "compute-apps", fields)
    processes = [{name: each.get(name) for name, _, _ in fields} for each in found]
    return {"gpu_processes": processes} if processes or not error else {}


def nvlinks(tools: Tools) -> "dict[str, Any]":
    """Returns each GPU's number of active links, and the errors of these links. On a machine with an NVSwitch, also
    returns whether the fabric manager runs."""
    path = tools.tool("nvidia-smi")
    answer: dict[str, Any] = fabric_manager()
    links: dict[int, dict[str, int]] = {}
    for option in ("-s", "-e") if path else ():
        status, out, _ = run([path or "", "nvlink", option], tools.env)
        gpu: dict[str, int] = {}
        for line in out.splitlines() if status == 0 else ():
            begins, link = re.match(r"GPU (\d{1,4}):", line), re.match(LINK, line)
            if begins:
                index = int(begins.group(1))
                gpu = links.setdefault(index, {"gpu": index, "active": 0})
            elif link:
                name = link.group(2).lower() if link.group(2) else "active"
                gpu[name] = gpu.get(name, 0) + int(link.group(3) or link.group(1) != "<inactive>")
    return dict(answer, nvlinks=list(links.values())) if links else answer


def fabric_manager() -> "dict[str, bool]":
    """Returns {"fabric_manager": whether it runs}. Returns {} if there is no NVSwitch. Also returns {} if a container,
    or the option hidepid of /proc, hides other users' processes."""
    seen = os.stat("/proc/self/ns/pid").st_ino == FIRST_PID_SPACE and read_file("/proc/1/comm")
    if not seen or not glob.glob("/proc/driver/nvidia-nvswitch/devices/*"):
        return {}
    return {"fabric_manager": any(read_file("/proc/%d/comm" % pid).startswith(b"nv-fabricmanage") for pid in pids())}
