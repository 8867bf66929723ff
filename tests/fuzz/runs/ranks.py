#!/usr/bin/python3 -IS
# ruff: noqa: UP031
"""A rank of a case: ranks.py OWN PLAN. It writes numbered lines, and each that it has written to a file of its own in
OWN, too; then how it means to end. PLAN, JSON: {"wait": seconds before the first line, "gap": between two, "most":
seconds, "fail": {"ATTEMPT.RANK": exit code}, "term": what it does about SIGTERM ("die", "ignore", "save"), "flood":
lines at the end, "stall": whether it falls silent then}. It comes to its end when OWN/go.ATTEMPT is there."""

import json
import os
import signal
import sys
import time

OWN, PLAN = sys.argv[1], json.loads(sys.argv[2])
RANK, ATTEMPT = os.environ["RANK"], os.environ.get("FLEET_ATTEMPT", "0")
path = "%s/%s.%s.%s.%d" % (OWN, os.uname()[1], RANK, ATTEMPT, os.getpid())
own = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def end(code: int) -> None:
    os.write(own, b"end %d\n" % code)
    os._exit(code)


def put(text: str) -> None:
    data = whole = text.encode()
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:  # no room for its log
        end(7)
    os.write(own, whole)


def term(signum: int, frame: object) -> None:
    time.sleep(0.5)
    put("rank %s attempt %s saved\n" % (RANK, ATTEMPT))
    end(143)


for stop in (signal.SIGINT, signal.SIGTERM):
    if PLAN["term"] == "ignore":
        signal.signal(stop, signal.SIG_IGN)
    elif PLAN["term"] == "save":
        signal.signal(stop, term)
    else:  # without a traceback of Python's
        signal.signal(stop, signal.SIG_DFL)
time.sleep(PLAN["wait"])
until, number, fails = time.monotonic() + PLAN["most"], 0, [key.split(".")[0] for key in PLAN["fail"]]
while time.monotonic() < until:
    put("rank %s attempt %s line %d\n" % (RANK, ATTEMPT, number))
    number += 1
    if os.path.exists("%s/go.%s" % (OWN, ATTEMPT)):
        if PLAN["stall"]:
            time.sleep(until - time.monotonic())
        if "%s.%s" % (ATTEMPT, RANK) in PLAN["fail"]:
            end(PLAN["fail"]["%s.%s" % (ATTEMPT, RANK)])
        if ATTEMPT not in fails:
            break
    time.sleep(PLAN["gap"])
for number in range(PLAN["flood"]):
    put("rank %s attempt %s flood %d %s\n" % (RANK, ATTEMPT, number, "x" * 900))
end(0)
