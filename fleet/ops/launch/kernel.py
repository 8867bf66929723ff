"""What kernels' logs say of a failure. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet.ops.launch.gang import Failure, Gang
from fleet.protocol.messages.run import KernelLine
from fleet.rules.kernel import SIGKILL, KernelRule, rule_of

MAX_LINES = 20  # more than any honest node sends
SUDDEN_SECONDS = 30.0  # between what the kernel said and what that explains; the two clocks drift apart with the years


@dataclass(frozen=True)
class Evidence:
    """The kernel's line that explains a failure, on whichever host, and what it means."""

    host: str
    line: str
    rule: KernelRule

    @property
    def remedy(self) -> str:
        return self.rule.remedy.format(host=self.host)


def evidence(failure: Failure, gang: Gang, text: str, victim: bool) -> Evidence | None:
    """text: the failed rank's last words. victim: it only laments what happened elsewhere, so that any host may know
    why."""
    others = [host for host in gang.nodes if host != failure.host] if victim else []
    for host in [failure.host, *others]:
        for line in reversed((gang.nodes[host].status.get("kernel") or [])[-MAX_LINES:]):
            rule = rule_of(line["text"])
            if rule is None:
                continue
            if _explains(rule, line, failure, gang, text) if host == failure.host else rule.broken:
                return Evidence(host, line["text"], rule)
    return None


def _explains(rule: KernelRule, line: KernelLine, failure: Failure, gang: Gang, text: str) -> bool:
    if line["rank"] is not None and line["rank"] == failure.rank:
        return True
    when = gang.nodes[failure.host].clock.on_head(line["time"])
    if rule.sudden and abs(failure.time - when) > SUDDEN_SECONDS:
        return False
    signal = SIGKILL if failure.what == "supervisor" else failure.signal or max(0, failure.exit_code - 128)
    return signal in rule.signals or re.search(rule.words, text) is not None
