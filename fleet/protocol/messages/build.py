"""Defines the messages of builds: the compilers of a node, and the build itself."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.values import Matching, Sha256, Training

Version = Annotated[str, Matching(r"[0-9]+(\.[0-9]+)*")]
Capability = Annotated[str, Matching(r"[0-9]{1,2}\.[0-9]")]
Tool = TypedDict("Tool", {"path": str, "version": Version | None})
NoPython = TypedDict("NoPython", {"error": Annotated[str, bool]})
Python = TypedDict("Python", {"error": None, "executable": str})
Torch = TypedDict("Torch", {"version": str | None, "cuda": str | None, "hip": str | None})
Gpu = TypedDict("Gpu", {"name": str, "capability": Capability | None})
Backends = TypedDict("Backends", {"pip": bool, "setuptools": bool, "wheel": bool})
# a fact is missing if its step failed or took too long
Toolchain = TypedDict(
    "Toolchain",
    {
        "activate": str | None,
        "python": NoPython | Python,
        "torch": Torch | None,
        "glibc": Version,
        "gpu_error": str | None,
        "gpus": list[Gpu],
        "cc": Tool | None,
        "cxx": Tool | None,
        "nvcc": Tool | None,
        "ninja": Tool | None,
        "headers": str | None,
        "backends": Backends,
    },
    total=False,
)
ToolchainFacts = TypedDict("ToolchainFacts", {"facts": Toolchain})
BuildStarted = TypedDict("BuildStarted", {"event": Literal["started"]})
# the wheel's bytes follow it, as output 1
Built = TypedDict(
    "Built",
    {
        "event": Literal["built"],
        "file": Annotated[str, Matching(r"[A-Za-z0-9_][A-Za-z0-9_.+!]*(-[A-Za-z0-9_.+!]+){4,5}\.whl")],
        "sha256": Sha256,
    },
)


# -- the head's requests ------------------------------------------------------------------------------------------
class ToolchainSpec(Training):
    """The request for a node's compilers. deadline: seconds for the answer."""

    deadline: float


class BuildSpec(Training):
    """The request to build. source: the folder of the tree. mark: names all processes that are started. grace: seconds
    between SIGTERM and SIGKILL. wait: seconds for a sync of the source to end."""

    source: str
    id: str
    mark: str
    grace: float
    wait: float
