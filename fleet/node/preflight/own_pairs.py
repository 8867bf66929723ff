"""Does the same as preflight/pairs.py, but finds the address to listen at by spec["way"] (facts/way.py). This is a
separate program: the modules that find the address would triple the time in which pairs.py starts."""

import os

from fleet.node.facts.way import network
from fleet.node.preflight import pairs


def main() -> None:
    pairs.main(lambda spec: [*filter(None, [network(spec, os.environ)["network"]["advertised"]])])
