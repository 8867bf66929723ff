"""Recognises a rank that waited for others until it timed out: then all are stopped only after it is known where the
others are, see follow/stalls.py. Pure."""

import re

# what a rank writes that waited in vain; and where it names the one that it waited for, as \1, \2 or \3
TIMED_OUT = r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation"
NAMED = (
    r"Ranks? ([\d, ]+) failed to pass monitoredBarrier|errors while waiting for send/recv from rank (\d+)|"
    r"wait timeout after \d+ms, keys: /default_pg/\d+//\w+//\d+/(\d+)\b"
)
HOLD_SECONDS = 10.0  # between the first rank's time-out and the stop: others time out, too, who is missing is looked at
_TIMED_OUT = re.compile(TIMED_OUT + "|" + NAMED + "|Timed out after .* waiting for clients")


def timed_out(text: str) -> bool:
    """Returns whether a rank that wrote this waited for others in vain."""
    return _TIMED_OUT.search(text) is not None
