"""Recognises a rank that waited for others until it timed out. A run with such a rank is stopped only after the leader
knows where the other ranks are, see follow/stalls.py. This module has no side effects."""

import re

# messages of a rank that waited in vain; those in NAMED also have the rank that it waited for, as \1, \2 or \3
TIMED_OUT = r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation"
NAMED = (
    r"Ranks? ([\d, ]+) failed to pass monitoredBarrier|errors while waiting for send/recv from rank (\d+)|"
    r"wait timeout after \d+ms, keys: /default_pg/\d+//\w+//\d+/(\d+)\b"
)
HOLD_SECONDS = 10.0  # from the first rank's timeout to the stop: so long others time out, and missing ranks are found
# these texts are compiled when they are needed, as a run that ends well needs none
_TIMED_OUT = TIMED_OUT + "|" + NAMED + r"|Timed out after [^\n]{1,40}? waiting for clients"
# a traceback that is not chained to the text above it
_RAISED = (
    r"(?m)^(?:\[rank\d+\]: ?)?(?!.*(?:above exception|Exception ignored|Exception in ))\S.*\n"
    r"(?:(?:\[rank\d+\]: ?)?\n)*(?:\[rank\d+\]: ?)?Traceback \(most recent call last\):"
)


def timed_out(text: str) -> bool:
    """Returns whether a rank with this output waited for others in vain, and raised no other error since."""
    last = max((found.end() for found in re.finditer(_TIMED_OUT, text)), default=0)
    return last > 0 and re.compile(_RAISED).search(text, text.rfind("\n", 0, last) + 1) is None
