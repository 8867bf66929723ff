"""An inventory as a hand wrote it, with comments and groups of lines."""

from __future__ import annotations

from typing import Any

from fleet.inventory.find import parse


def yaml(text: str) -> Any:
    return parse(text.encode(), "fleet.yaml")


OLD = """\
# my hosts
defaults: {user: root, workdir: ~/work}   # everybody

hosts:
  # the big one
  gpu1: {slots: 8}   # new fans
  gpu2:
    port: 33   # odd
  gpu3:
  gpu[5-6]: {slots: 2}   # twins
  # no more of them

groups: {a: gpu1}
"""
