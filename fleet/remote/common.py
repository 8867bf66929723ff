"""What every remote program but the very shortest has in front of it, behind wire.py."""
import json
import threading


def send_json(message):
    frame(b"J", json.dumps(message).encode("utf-8", "surrogateescape"))
