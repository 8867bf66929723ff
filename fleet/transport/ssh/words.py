"""The words of an ssh_config value, and what ~, %x and ${NAME} in them stand for."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

_TOKEN = re.compile(r"\$\{(\w*)\}|%(.?)", re.DOTALL)


def words(value: str) -> list[str]:
    """What stands between the blanks, without quotes and comment. Of lines that ssh reads, this only finds the one."""
    try:
        parts = shlex.split(value)
    except ValueError:
        parts = value.split()
    comment = next((i for i, part in enumerate(parts) if part.startswith("#")), len(parts))
    return parts[:comment]


def tilde(text: str, home: Path) -> str:
    """~ is `home`, ~user what the system says."""
    if text == "~" or text.startswith("~/"):
        return str(home) + text[1:]
    return os.path.expanduser(text)  # noqa: PTH111


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """The text with its %tokens and ${VARIABLES} put in. ValueError, as ssh refuses, for what has no value."""

    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            if match[1] not in os.environ:
                raise ValueError(f"the environment has no {match[1]}")
            return os.environ[match[1]]
        if match[2] not in tokens:
            raise ValueError(f"there is no token %{match[2]}")
        return tokens[match[2]]

    return _TOKEN.sub(value, text)
