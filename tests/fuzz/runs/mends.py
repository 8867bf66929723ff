"""The mends that `python -m tests.fuzz.mutants` takes back, of runs with several heads: (name, case of the issue, file
below fleet/, text of the mend, what stands there without it[, (file, text, what) of a second one])."""

from __future__ import annotations

GANG, LOOP, STOPPING = "node/gang/gang.py", "ops/run/launch/loop.py", "ops/run/follow/stopping.py"
FIND, ATTACH, STOP = "ops/run/find/find.py", "ops/run/find/attach.py", "ops/run/find/stop.py"
ATTEMPTS, START = "ops/run/launch/attempts.py", "ops/run/start/start.py"
UNLEASHED = (
    "                if run.leads:\n"
    "                    run.unleash()\n"
    "                    folder.set_state(lease=None)\n"
)
SUMMARY, HERE = "ops/run/end/summary.py", "ops/run/find/here.py"
Mend = tuple[str, str, str, str, str] | tuple[str, str, str, str, str, tuple[str, str, str]]
MENDS: list[Mend] = [
    (
        "a node that has not answered is unknown",
        "1",
        FIND,
        "            if node_rank not in known\n",
        "            if False\n",
    ),
    (
        "who attaches later brings what was missing",
        "1",
        ATTACH,
        "return decided and not {*summary.incomplete_logs} & set(found.hosts)",
        "return True",
    ),
    (
        "what it was stopped for is known first",
        "2",
        LOOP,
        "if known := record.verdict or record.stop_reason:",
        "if False:",
    ),
    (
        "who looks on calls no node lost",
        "1",
        STOPPING,
        "        if not self.leads:\n            self.gang.unknown.add(host)\n",
        "        if False:\n            self.gang.unknown.add(host)\n",
    ),
    (
        "another head's end is no failure of a node",
        "2",
        GANG,
        'if end is not None and (self.end is None or end["by"] in BY_HAND and not self.by_hand):',
        "if False:",
    ),
    (
        "a stop is on record before a rank hears of it",
        "2",
        "node/run/follow.py",
        '                event["asked"] = True\n',
        "                pass\n",
        (
            GANG,
            'return node.cause if node.cause == "supervisor" or self._before_stop(node.began) else None',
            "return node.cause",
        ),
    ),
    (
        "a reboot is told by its boot id",
        "3",
        "node/base/run_folder.py",
        "    if since_boot(folder):",
        "    if True:",
    ),
    (
        "processes are found by their mark",
        "4",
        "node/run/stop.py",
        'return ending.finish(), "running" if ending.signals_sent else "unknown"',
        'return [], "unknown"',
    ),
    (
        "who lost its folder is stopped, too",
        "4",
        STOP,
        "lost = [node.host for node in found.unknown if node.host.name in answered]",
        "lost = list[Host]()",
    ),
    (
        "all lost nodes are left out",
        "5",
        SUMMARY,
        'return fold({failure.host, *verdict["unknown"]})',
        "return failure.host",
    ),
    (
        "a duration follows no clock that is set",
        "6",
        "ops/run/plan/origin.py",
        "if isinstance(kept, list) and kept[:1] == [boot]",
        "if False and kept and boot",
    ),
    (
        "a stop has room on a full disk",
        "6",
        "node/base/run_folder.py",
        'STOP), request, (".tmp", ".new"))',
        'STOP), request, (".tmp",))',
    ),
    (
        "a node that goes while its logs come is not lost",
        "6",
        STOPPING,
        "        if self.gang.nodes[host].state in FINAL:  # how its part ended is known, and its logs come later\n",
        "        if False:\n",
    ),
    (
        "a stop goes on where a host does not answer",
        "7",
        STOP,
        "    if left:\n        record = found.record(",
        "    if False:\n        record = found.record(",
    ),
    (
        "who looks on takes off no lease",
        "8",
        ATTEMPTS,
        UNLEASHED,
        "                run.unleash()\n                folder.set_state(lease=None)\n",
    ),
    (
        "a run that is left needs no head",
        "9",
        ATTEMPTS,
        UNLEASHED,
        "",
    ),
    (
        "a leader goes with its terminal",
        "9",
        "cli/leader.py",
        "_passed_on.extend(received or [signal.SIGHUP])",
        "_passed_on.extend(received)",
    ),
    (
        "latest is this folder's",
        "10",
        HERE,
        "[run for run in runs if run.run_id in here or run.run_id == argument]",
        "runs",
    ),
    (
        "an end in the pause has an author",
        "2",
        "node/run/stop.py",
        "put_verdict(folder, dict(end, attempt=attempt_of(read_json(os.path.join(folder, SPEC)))))",
        "pass",
    ),
    (
        "who leads it tells all nodes how it ended",
        "43",
        START,
        'return spec["verdict"] or verdict, missed + _stop(spec, hosts, sessions)[1]',
        "return verdict, missed",
    ),
    (
        "the first node has the say",
        "43",
        START,
        'spec["verdict"] = answer.get("verdict") or verdict',
        "pass",
    ),
    (
        "the first verdict stays",
        "43",
        "node/base/run_folder.py",
        "os.link(new, os.path.join(folder, VERDICT))",
        "os.replace(new, os.path.join(folder, VERDICT)); open(new, 'w').close()",
    ),
    (
        "who looks on waits for the verdict",
        "43",
        "node/run/follow.py",
        "if verdict or not self.waits or",
        "if True or",
    ),
    (
        "a ping is no spec",
        "-",
        "node/base/wire.py",
        """while _begun and line.startswith(b'{"op": '):""",
        "while False:",
    ),
]

# Of some mends the cases that can show them are rare among all that are drawn: patterns of their texts. They are drawn
# as ever, by the same seeds; the others are passed over.
AWAY = r"(cut|power|freeze|flap)"
ABOUT = {
    "a node that has not answered is unknown": rf"link b \w+: {AWAY}",
    "a reboot is told by its boot id": "node n.: (reboot|power)",
    "processes are found by their mark": "folder n.: removed",
    "who lost its folder is stopped, too": "folder n.: removed",
    "all lost nodes are left out": r"link a \w+: cut for.*link a \w+: cut for",
    "a duration follows no clock that is set": "clock a: ",
    "a stop has room on a full disk": "disk n.: full",
    "a node that goes while its logs come is not lost": rf"drain .*{AWAY}",
    "a stop goes on where a host does not answer": rf"ends: stop.*{AWAY}",
    "who looks on takes off no lease": "looker b: .*head a: kill",
    "a run that is left needs no head": "(helper a: |head a: leave)",
    "a leader goes with its terminal": "head a: HUP",
    "latest is this folder's": "stop latest",
    "an end in the pause has an author": "in the pause",
}
