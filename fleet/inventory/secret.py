"""Decides which values of variables may be stored or shown: only those that are clearly not secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

SECRET = re.compile(
    "token(?!iz)|secret|passw|passphrase|(?<!by)pass(?![a-z])|pwd|(?<![a-z])pw(?![a-z])|credential|creds?(?![a-z])|key|"
    "auth(?!or(?!iz))|cookie|login",
    re.IGNORECASE,
)
# a value with several parts (JSON, options, an HTTP header), one of which has a name that matches SECRET
_S = SECRET.pattern
_NAMED = re.compile(rf"({_S})[\w-]*[\"']*\s*[=:]|-[\w-]*({_S})[\w-]*\s|\bbearer\s", re.IGNORECASE)
# prefixes of libraries' settings; if one of these settings is a secret, its name matches SECRET
_SETTINGS = re.compile(
    "(NCCL|GLOO|TORCH|PYTORCH|CUDA|OMP|MKL|UCX|OMPI|DEEPSPEED|ACCELERATE|TRITON|HF|TRANSFORMERS|WANDB|PYTHON)_"
)
# a login in an address, and the beginnings of well-known keys
_GIVEN_AWAY = re.compile(r"://[^/\s]*@|\b(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)")
# the same for arguments of a script. They may be any text, so a match must also be as long as a key.
_KEY = re.compile(r"://[^/\s]*@|\b(hf_|sk-([a-z]+-)*|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)[A-Za-z0-9]{12}")
_LOWERCASE = re.compile("[a-z]{1,20}([/_.-][a-z]{1,20})*")
_COUNTED = re.compile("token|key|auth", re.IGNORECASE)  # with a number it is no secret: --max-tokens 512
_TOKEN = re.compile("[A-Za-z0-9]+")
# in a line for a shell: a token with its quotes; a value that the shell inserts; a path; a name of a secret's place
_SHELL_TOKEN = re.compile(r"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s;&|()<>'"\\])+""")
_ELSEWHERE = re.compile(r"""`|\$(?!['"])|"[$`]""")
_PLAIN = re.compile("[/~].*")
_WHERE = re.compile("([_-](FILE|PATH|SOCK|BACKEND|STDIN)|^LOGIN)$", re.IGNORECASE)
_HEADER = re.compile(
    r"\b(authorization|bearer|cookie|[\w-]+-(?:token|key))\s*[:\s]\s*(?:(?:bearer|basic|token)\s+)?"
    r"(?!bearer|basic|token|[\s$`'\":])",
    re.IGNORECASE,
)
_BARE = re.compile("[A-Za-z0-9_-]{32,}")  # a key as a plain argument: wandb login KEY
MAX_VALUE, MAX_TOKEN, MAX_MIXED = 400, 20, 5  # characters; a token that mixes letters and digits may be a password
Keep = Callable[[str, str], "str | None"]
OPTIONS = ("--env", "--env-expand", "--var")
COMMAND = "--notify"  # an option whose value is a command


def unless_secret(name: str, value: str) -> str | None:
    """Returns the value if it is a setting, a number, a path or plain text. Returns None if it may be a secret."""
    if any(found.search(value) for found in (_GIVEN_AWAY, _NAMED)) or SECRET.search(name):
        return None
    if not value.isprintable() or len(value) > MAX_VALUE:
        return None
    if _SETTINGS.match(name) or _is_number(value):
        return value
    tokens = _TOKEN.findall(value)
    plain = all(len(w) <= (MAX_TOKEN if w.isalpha() or w.isdigit() else MAX_MIXED) for w in tokens)
    return value if plain and value.isascii() else None


def has_secret_part(value: str) -> bool:
    """Returns whether a text (JSON, options, an HTTP header) has several parts, one of them with a secret's name."""
    return _NAMED.search(value) is not None


def without_secrets(env: Mapping[str, str]) -> dict[str, str | None]:
    """Returns name -> value, or None in place of a value that may be a secret."""
    return {name: unless_secret(name, value) for name, value in env.items()}


def masked(argv: Sequence[str], options: Sequence[str] = OPTIONS, keep: Keep = unless_secret) -> list[str]:
    """Returns a command line for display. *** replaces a value that may be a secret, in options that take NAME=VALUE or
    a command. The arguments after -- are unchanged."""

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
        elif out[-1:] == [COMMAND] or (option == COMMAND and equals):
            name, value = (COMMAND + "=", pair) if out[-1:] != [COMMAND] else ("", arg)
            out.append(arg if keep(COMMAND, value) is not None else f"{name}***")
        else:
            out.append(f"{option}={hidden(pair)}" if option in options and equals else arg)
    return out


def masked_argv(argv: Sequence[str]) -> list[str]:
    """Returns a script's command line for display. *** replaces values such as X in --token=X, --api-key X and
    PASSWORD=X, and arguments that look like a key."""

    def is_secret(name: str, value: str) -> bool:
        found = SECRET.search(name)
        return found is not None and not (_COUNTED.match(found[0]) and _is_number(value))

    out: list[str] = []
    for before, arg in zip(("", *argv), argv, strict=False):
        name, equals, value = arg.partition("=")
        if equals and (is_secret(name, value) or _KEY.search(value)):
            out.append(f"{name}=***")
        elif arg.startswith("--env="):
            out.append(f"--env={masked_argv([value])[0]}")
        elif _KEY.search(arg) or before[:1] == "-" and "=" not in before and arg[:1] != "-" and is_secret(before, arg):
            out.append("***")
        else:
            out.append(arg)
    return out


def secret_in(line: str) -> str | None:
    """Returns the name of a secret in a line for a shell, with *** for the secret. Returns None if there is no secret.
    Values that the shell inserts, $NAME and $(command), are no secrets."""
    before = last = ""
    for token in _SHELL_TOKEN.findall(line):
        text = re.sub("['\"]", "", token)
        option, equals, value = token.partition("=")
        name = re.search(r"-*[\w.-]*$", option)[0]  # type: ignore[index]  # it always matches, perhaps an empty text
        if not equals:
            name, value = (before if before[:1] == "-" and token[:1] != "-" else ""), token
        if re.search(r"\s", text) and (header := _HEADER.search(text)):
            return f"{header[1]}: ***"
        if _ELSEWHERE.match(value) and (found := _KEY.search(value)) and not found[0].startswith("://"):
            return f"{name}{'=' if equals else ' '}***"  # the default value in ${TOKEN:-hf_...}
        if not _ELSEWHERE.match(value):
            bare = re.sub("['\"]", "", value)
            if _stands_for_itself(name, bare) or (equals and _KEY.search(bare)):
                return f"{name}{'=' if equals else ' '}***"
            if _KEY.search(text) or (last == "login" and _BARE.fullmatch(text)):
                return "***" if last != "login" else "login ***"
            if (
                bare != value and re.search(r"\s", bare) and (inner := secret_in(bare))
            ):  # a command of its own: bash -c '...'
                return inner
        before, last = ("" if equals else text), (last if token[:1] == "-" else text)
    return None


def _stands_for_itself(name: str, value: str) -> bool:
    """Returns whether the value is the secret with this name. Returns False for a path of a file that has the secret,
    and for a number that counts something."""
    found, bare = SECRET.search(name), name.lstrip("-")
    if found is None or _WHERE.search(bare) or not value or _PLAIN.fullmatch(value):
        return False
    if name[:2] == "--" and found[0].lower() == "key" and _LOWERCASE.fullmatch(value):
        return False  # --sort-key loss: a secret key has more than the characters a to z
    return not (_COUNTED.match(found[0]) and _is_number(value))


def _is_number(value: str) -> bool:
    try:
        int(value, 16) if value[:2].lower() == "0x" else float(value)
    except ValueError:
        return False
    return len(value) <= MAX_TOKEN
