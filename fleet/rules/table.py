"""All rules, in the order in which equally bad findings are told.

To add one: an entry in the file that it fits in, and a case in tests/golden/rules.
"""

from __future__ import annotations

from fleet.rules import devices, interpreter, launch, neighbours, steps, system
from fleet.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *launch.RULES,
    *neighbours.RULES,
    *interpreter.RULES,
    *devices.RULES,
    *system.RULES,
    *steps.RULES,
)
