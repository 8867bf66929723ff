"""Steps of the probe that have less time than its deadline, once those before them are through."""

OWN_SECONDS = {
    "gpu processes": 3.0,  # nvidia-smi has answered a query before
    "kernel log": 5.0,
    "imports": 15.0,
    "compilers": 5.0,
    "nccl": 3.0,
    "data files": 5.0,
}


def own_seconds(deadline: float) -> "dict[str, float]":
    """Returns the seconds of these steps where the others have until `deadline`: who gives more gives it to imports."""
    return dict(OWN_SECONDS, imports=max(OWN_SECONDS["imports"], deadline - 5.0))
