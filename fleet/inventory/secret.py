"""Decides which values of variables may be written down or shown: those that are plainly no secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

SECRET = re.compile(
    "token(?!iz)|secret|passw|passphrase|(?<!by)pass(?![a-z])|pwd|(?<![a-z])pw(?![a-z])|credential|creds?(?![a-z])|key|"
    "auth(?!or(?!iz))|cookie|login",
    re.IGNORECASE,
)
# a value of several parts, one of which has such a name: JSON, options, a header of HTTP
_S = SECRET.pattern
_NAMED = re.compile(rf"({_S})[\w-]*[\"']*\s*[=:]|-[\w-]*({_S})[\w-]*\s|\bbearer\s", re.IGNORECASE)
# of libraries' settings; what of these is a secret has a name that shows it
_SETTINGS = re.compile(
    "(NCCL|GLOO|TORCH|PYTORCH|CUDA|OMP|MKL|UCX|OMPI|DEEPSPEED|ACCELERATE|TRITON|HF|TRANSFORMERS|WANDB|PYTHON)_"
)
# a login in an address, and how well-known keys begin
_GIVEN_AWAY = re.compile(r"://[^/\s]*@|\b(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)")
# of tokens that may be anything, a script's name among them: what is as long as a key, too
_KEY = re.compile(r"://[^/\s]*@|\b(hf_|sk-([a-z]+-)*|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)[A-Za-z0-9]{12}")
_COUNTED = re.compile("token|key|auth", re.IGNORECASE)  # what has a number is no secret: --max-tokens 512
_TOKEN = re.compile("[A-Za-z0-9]+")
MAX_VALUE, MAX_WORD, MAX_MIXED = 400, 20, 5  # characters; a token of both letters and digits may be a password
Keep = Callable[[str, str], "str | None"]
OPTIONS = ("--env", "--env-expand", "--var")


def kept(name: str, value: str) -> str | None:
    """The value, where it is a setting, a number, a path or plain text; None for all that may be a secret."""
    if any(found.search(value) for found in (_GIVEN_AWAY, _NAMED)) or SECRET.search(name):
        return None
    if not value.isprintable() or len(value) > MAX_VALUE:
        return None
    if _SETTINGS.match(name) or _is_number(value):
        return value
    tokens = _TOKEN.findall(value)
    plain = all(len(w) <= (MAX_WORD if w.isalpha() or w.isdigit() else MAX_MIXED) for w in tokens)
    return value if plain and value.isascii() else None


def kept_of(env: Mapping[str, str]) -> dict[str, str | None]:
    """Name -> value, None where it is not to be written down."""
    return {name: kept(name, value) for name, value in env.items()}


def masked(argv: Sequence[str], options: Sequence[str] = OPTIONS, keep: Keep = kept) -> list[str]:
    """A command line as it may be shown or written down: of options that take NAME=VALUE, a value that is not kept is
    ***. What follows -- is a command of which nothing is known."""

    def hidden(pair: str) -> str:
        name, equals, value = pair.partition("=")
        return pair if not equals or keep(name, value) is not None else f"{name}=***"

    out: list[str] = []
    for arg in argv:
        option, equals, pair = arg.partition("=")
        if arg == "--":
            return [*out, *argv[len(out) :]]
        if out and out[-1] in options:
            out.append(hidden(arg))
        else:
            out.append(f"{option}={hidden(pair)}" if option in options and equals else arg)
    return out


def masked_words(argv: Sequence[str]) -> list[str]:
    """A script's command line as it may be shown to others: of --token=X, --api-key X and PASSWORD=X, and of what looks
    like a key, the value is ***."""

    def is_secret(name: str, value: str) -> bool:
        found = SECRET.search(name)
        return found is not None and not (_COUNTED.match(found[0]) and _is_number(value))

    out: list[str] = []
    for before, arg in zip(("", *argv), argv, strict=False):
        name, equals, value = arg.partition("=")
        if equals and (is_secret(name, value) or _KEY.search(value)):
            out.append(f"{name}=***")
        elif _KEY.search(arg) or before[:1] == "-" and "=" not in before and arg[:1] != "-" and is_secret(before, arg):
            out.append("***")
        else:
            out.append(arg)
    return out


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return len(value) <= MAX_WORD
