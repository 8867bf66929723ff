"""Defines the steps of the probe whose own limit is shorter than the deadline. It counts from the end of the steps
before them."""

OWN_SECONDS = {
    "gpu processes": 3.0,  # nvidia-smi has answered another query already
    "kernel log": 5.0,
    "imports": 15.0,
    "compilers": 5.0,
    "nccl": 3.0,
    "data files": 5.0,
}


def own_seconds(deadline: float) -> "dict[str, float]":
    """Returns the seconds of these steps, if the others have until `deadline`. Only the step imports gets more with a
    longer deadline."""
    return dict(OWN_SECONDS, imports=max(OWN_SECONDS["imports"], deadline - 5.0))
