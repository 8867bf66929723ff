"""Builds: what a node would compile with, and the build itself."""

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
# a fact whose step failed or took too long is missing
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
# after it come the wheel's bytes, as output 1
Built = TypedDict(
    "Built",
    {
        "event": Literal["built"],
        "file": Annotated[str, Matching(r"[A-Za-z0-9_][A-Za-z0-9_.+!]*(-[A-Za-z0-9_.+!]+){4,5}\.whl")],
        "sha256": Sha256,
    },
)


# -- what the head asks for ---------------------------------------------------------------------------------------
class ToolchainSpec(Training):
    """deadline: seconds for an answer."""

    deadline: float


class BuildSpec(Training):
    """source: the folder of the tree. mark: of all that is started. grace: seconds between SIGTERM and SIGKILL. wait:
    seconds for a sync of the source to end."""

    source: str
    id: str
    mark: str
    grace: float
    wait: float
