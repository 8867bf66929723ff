"""Does the same as preflight/pairs.py, at an address that it finds itself by spec["way"], see facts/way.py. It is
another program because the modules for that would triple the time of its start."""

import os

from fleet.node.facts.way import network
from fleet.node.preflight import pairs


def main() -> None:
    pairs.main(lambda spec: [*filter(None, [network(spec, os.environ)["network"]["advertised"]])])
