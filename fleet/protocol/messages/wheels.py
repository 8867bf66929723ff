"""Wheels: a node's messages about its Python, and of an install."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.values import Failed, Matching, Training

State = Literal["there", "absent", "other", "broken"]
WheelState = TypedDict("WheelState", {"state": State, "verified": bool})
Name = Annotated[str, Matching(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")]
Text = Annotated[str, Matching(r"[ -~]{0,1000}")]
# what is installed there, by its metadata
Dist = TypedDict("Dist", {"name": Name, "version": Text, "requires": list[Text], "extras": list[Name]})
Dists = Annotated[list[Dist], lambda found: len(found) <= 5000]
Markers = TypedDict(
    "Markers",
    {
        "implementation_name": Text,
        "implementation_version": Text,
        "os_name": Text,
        "platform_machine": Text,
        "platform_python_implementation": Text,
        "platform_release": Text,
        "platform_system": Text,
        "platform_version": Text,
        "python_full_version": Text,
        "python_version": Text,
        "sys_platform": Text,
    },
)
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
        "dists": Dists,
        "markers": Markers,
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
class WheelIdentity(TypedDict):
    """A wheel. identity: of what it installs."""

    name: str
    version: str
    identity: str


class Carried(WheelIdentity):
    """One that was sent here. modules: what to import to see it work."""

    file: str
    sha256: str
    modules: list[str]


class InterpreterSpec(Training):
    """judge: also what its pip takes, and what is installed there. deadline: seconds for an answer."""

    deadline: float
    judge: bool
    wheels: list[WheelIdentity]


class InstallSpec(Training):
    """folder: where the wheels lie. mark: of all that is started. wait: seconds for the lock."""

    deadline: float
    folder: str
    mark: str
    wait: float
    import_deadline: float
    wheels: list[Carried]
