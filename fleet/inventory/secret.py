"""Which values of variables may be written down or shown: those that are plainly no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SECRET = re.compile("token(?!iz)|secret|passw|passphrase|credential|key|auth(?!or)|cookie", re.IGNORECASE)
# of libraries' settings; what of these is a secret has a name that says so
_SETTINGS = re.compile(
    "(NCCL|GLOO|TORCH|PYTORCH|CUDA|OMP|MKL|UCX|OMPI|DEEPSPEED|ACCELERATE|TRITON|HF|TRANSFORMERS|WANDB|PYTHON)_"
)
# a login in an address, and how well-known keys begin
_GIVEN_AWAY = re.compile(r"://[^/\s]*@|\b(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)")
_WORD = re.compile("[A-Za-z0-9]+")
MAX_VALUE, MAX_WORD, MAX_MIXED = 400, 20, 5  # characters; a word of both letters and digits may be a password
OPTIONS = ("--env", "--env-expand", "--var")


def kept(name: str, value: str) -> str | None:
    """The value, where it is a setting, a number, a path or plain words; None for all that may be a secret."""
    if SECRET.search(name) or _GIVEN_AWAY.search(value) or not value.isprintable() or len(value) > MAX_VALUE:
        return None
    if _SETTINGS.match(name) or _is_number(value):
        return value
    words = _WORD.findall(value)
    plain = all(len(w) <= (MAX_WORD if w.isalpha() or w.isdigit() else MAX_MIXED) for w in words)
    return value if plain and value.isascii() else None


def kept_of(env: Mapping[str, str]) -> dict[str, str | None]:
    """Name -> value, None where it is not to be written down."""
    return {name: kept(name, value) for name, value in env.items()}


def masked(argv: Sequence[str]) -> list[str]:
    """A fleet command line as it may be written down: values of variables that may be secret are ***."""
    out: list[str] = []
    for word in argv:
        option, equals, rest = word.partition("=")
        if out and out[-1] in OPTIONS:
            out.append(_masked(word))
        elif option in OPTIONS and equals:
            out.append(f"{option}={_masked(rest)}")
        else:
            out.append(word)
    return out


def _masked(pair: str) -> str:
    name, equals, value = pair.partition("=")
    return pair if not equals or kept(name, value) is not None else f"{name}=***"


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return len(value) <= MAX_WORD
