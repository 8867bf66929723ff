"""Defines the messages about wheels: a node's, about its Python and about an install."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.values import Failed, Matching, Training

State = Literal["there", "absent", "other", "broken"]
WheelState = TypedDict("WheelState", {"state": State, "verified": bool})
Name = Annotated[str, Matching(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")]
Text = Annotated[str, Matching(r"[ -~]{0,1000}")]
# an installed distribution, by its metadata
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
# the facts by which wheels are chosen. A wheel that is there but not verified was never imported.
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
    """The install failed. wheels: their states, if the program got as far as checking them."""

    wheels: dict[str, State]


# -- the head's requests ------------------------------------------------------------------------------------------
class WheelIdentity(TypedDict):
    """Identifies a wheel. identity: of what it installs."""

    name: str
    version: str
    identity: str


class Carried(WheelIdentity):
    """Describes a wheel that was sent to the node. modules: imported to verify it."""

    file: str
    sha256: str
    modules: list[str]


class InterpreterSpec(Training):
    """The request for a node's interpreter. judge: also report what its pip accepts, and what is installed. deadline:
    seconds for the answer."""

    deadline: float
    judge: bool
    wheels: list[WheelIdentity]


class InstallSpec(Training):
    """The request to install. folder: of the wheels. mark: names all processes that are started. wait: seconds for the
    lock."""

    deadline: float
    folder: str
    mark: str
    wait: float
    import_deadline: float
    wheels: list[Carried]
