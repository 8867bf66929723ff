"""Wheels: what a node tells of its Python, and of an install."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.values import Failed, Matching, Training

State = Literal["there", "absent", "other", "broken"]
WheelState = TypedDict("WheelState", {"state": State, "verified": bool})
Unmet = TypedDict("Unmet", {"wheel": str, "needs": str, "has": str | None})
# what wheels are judged by; there and unverified is what was never imported
Interpreter = TypedDict(
    "Interpreter",
    {
        "event": Literal["facts"],
        "executable": str,
        "version": Annotated[str, Matching(r"[0-9]{1,4}(\.[0-9]{1,4}){2}")],
        "implementation": str,
        "platform": str,
        "soabi": str | None,
        "prefix": str,
        "target": str,
        "pip": str | None,
        "managed": bool,
        "free": int,
        "tags": list[Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9][A-Za-z0-9_.]*){2}")]],
        "states": list[WheelState],
        "unmet": list[Unmet],
    },
)
Installed = TypedDict(
    "Installed",
    {"event": Literal["done"], "executable": str, "wheels": dict[str, Literal["installed", "there"]]},
)


class InstallFailed(Failed, total=False):
    """wheels: what there is of them, where it came to look."""

    wheels: dict[str, State]


# -- what the head asks for ---------------------------------------------------------------------------------------
class Asked(TypedDict):
    """A wheel. identity: of what it installs."""

    name: str
    version: str
    identity: str
    requires: list[str]


class Carried(Asked):
    """One that was brought here. modules: what to import to see it work."""

    file: str
    sha256: str
    modules: list[str]


class InterpreterSpec(Training):
    """judge: also what its pip takes, and what is unmet. deadline: seconds for an answer."""

    deadline: float
    judge: bool
    wheels: list[Asked]


class InstallSpec(Training):
    """folder: where the wheels lie. mark: of all that is started. wait: seconds for the lock."""

    deadline: float
    folder: str
    mark: str
    wait: float
    import_deadline: float
    wheels: list[Carried]
