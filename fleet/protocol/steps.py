"""Steps of the probe that have less time than its deadline, once those before them are through."""

OWN_SECONDS = {
    "gpu processes": 3.0,  # nvidia-smi has answered a query before
    "imports": 15.0,
    "compilers": 5.0,
    "nccl": 3.0,
    "data files": 5.0,
}
