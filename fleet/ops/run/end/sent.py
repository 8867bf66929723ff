"""Makes the summary of a run in containers, from the messages of its containers. The container that coordinates the run
has the last lines of failed ranks, but not the logs of other containers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.model import Host, Node
from fleet.node.gang.gang import Gang
from fleet.ops.run.end.summary import Written, summarise
from fleet.ops.run.kept.record import RunRecord, about_of
from fleet.protocol.messages.run import Verdict

# (host, rank) -> {"tail": its last lines, "before": the last lines of its stderr before its first SIGTERM}
Texts = Mapping[tuple[str, int], Mapping[str, str]]
READ = ("first_failure", "next", "tracebacks", "hosts")


class Sent:
    """Stands for the logs of a host: holds the last lines that its ranks sent. folder: the logs' path on that host."""

    def __init__(self, folder: Path, texts: Mapping[str, Mapping[str, str]]) -> None:
        self.folder, self._texts = folder, texts

    def tail(self, name: str, limit: int = 0, since: int = 0, until: int | None = None) -> str:
        return self._texts.get(name, {}).get("tail" if until is None else "before", "")


def logs_of(gang: Gang, texts: Texts, path: Path) -> dict[str, Any]:
    """Returns host -> the Sent that replaces its logs."""
    found: dict[str, dict[str, Mapping[str, str]]] = {host: {} for host in gang.nodes}
    for (host, rank), sent in texts.items():
        found[host][f"rank{rank}.err"] = sent
    return {host: Sent(path / host, sent) for host, sent in found.items()}


def written_by_ranks(gang: Gang, texts: Texts) -> Written:
    """Returns the output of an attempt's ranks, for the verdict."""
    return Written(gang, logs_of(gang, texts, Path()))


def summary(about: Mapping[str, Any], gang: Gang, texts: Texts, verdict: Verdict, attempt: int) -> dict[str, Any]:
    """Returns the fields of summary.json that are derived from the ranks' output. about: run.json."""
    nodes = sorted(gang.nodes.values(), key=lambda node: node.node_rank)
    path = Path(about["logs"])
    record = RunRecord(
        about["run"],
        tuple(Node(Host(it.host, it.host), it.node_rank, len(it.ranks), min(it.ranks, default=0)) for it in nodes),
        path,
        about_of({}, engine=about["engine"], attempt=attempt),
    )
    report = summarise(record, gang, logs_of(gang, texts, path), [], 0.0, verdict)
    found = report.as_json()
    return {name: found[name] for name in READ}
