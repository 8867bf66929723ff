"""Steps of a playbook as they may be shown: without values that are often secrets."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.inventory import secret as secrets
from fleet.playbook import Step

ENV_OPTIONS = ("--env", "--env-expand")


def masked(argv: Sequence[str]) -> list[str]:
    """A step's argv as it may be shown: values of variables are often secrets."""
    return secrets.masked(argv, ENV_OPTIONS, lambda name, value: None)


def hidden(vars_: Sequence[str], steps: Sequence[Step]) -> list[str]:
    """--var words as they may be shown, to be copied: without values that a step hides and that seem secret."""
    masks = [word for step in steps for word, seen in zip(step.argv, masked(step.argv), strict=True) if word != seen]
    out = []
    for word in vars_:
        name, _, value = word.partition("=")
        filled = [each for each in masks if value and value in each]
        secret = any(secrets.SECRET.search(f"{name}={each.replace(value, '')}") for each in filled)
        out.append(f"{name}=***" if secret else word)
    return out
