"""What every remote program but the very shortest has in front of it, behind wire.py."""

import json
import threading  # noqa: F401 (the programs behind it use it)


def send_json(message):
    frame(b"J", json.dumps(message).encode("utf-8", "surrogateescape"))
