"""What `python -m tests.fuzz.mutants --by rule` takes back of the rule: (name, case, file below fleet/, text, what
stands there without it)."""

from __future__ import annotations

GANG, ELASTIC, ENDS = "node/gang/gang.py", "node/gang/elastic.py", "node/gang/ends.py"
VERDICT, SILENCE = "node/gang/verdict.py", "node/gang/silence.py"
MENDS = [
    (
        "an engine's SIGTERM is no cause, within a tie",
        "43.1",
        GANG,
        "key=lambda it: (it[1].signal == SIGTERM, collateral(it[1]), it[0], it[1].rank)",
        "key=lambda it: (it[0], it[1].rank)",
    ),
    ("an answer to a stop is no failure", "43.1", GANG, "return when <= self._stop_began", "return True"),
    (
        "an engine that was killed is noticed late",
        "43.1",
        GANG,
        "self._before_stop(node.began - self._late(node))",
        "self._before_stop(node.began)",
    ),
    (
        "who ends its part, and is lost then, ended it first",
        "43.1",
        GANG,
        "elif self._own_cause(node) is not None or self._gave_up(node):",
        "elif node.lost is None and (self._own_cause(node) is not None or self._gave_up(node)):",
    ),
    (
        "times are put on the leader's clock",
        "43.1",
        ENDS,
        "time + (self.fastest[0][1] if self.fastest else 0.0)",
        "time",
    ),
    (
        "all nodes at once are the leader's own link",
        "43.1",
        VERDICT,
        "(own_link(gang), gang.first(outputs.answers))",
        "(gang.first(outputs.answers),)",
    ),
    (
        "a link that goes down later is no cause",
        "43.1",
        VERDICT,
        "min(found, key=lambda it: it.time, default=None)",
        "next(iter(found), None)",
    ),
    ("restarts are bounded", "43.1", VERDICT, " if self.restarts < self.most else None", ""),
    ("a spare's start is no restart", "43.1", VERDICT, "if 0 < lost <= spares:", "if False:"),
    ("all that are silent are waited for", "43.1", SILENCE, "wait and len(times) == len(since) > 0", "False"),
    (
        "a stall ends a run",
        "43.1",
        SILENCE,
        "self.timeout is not None and quiet >= self.timeout and not",
        "False and not",
    ),
    ("an elastic run has a least", "43.1", ELASTIC, "elif left < self.least:", "elif False:"),
    ("an elastic run needs its first node", "43.1", ELASTIC, "if self.nodes[host].node_rank == 0:", "if False:"),
]
