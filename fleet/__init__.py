"""fleet: from a list of hosts to a running distributed training job, and back, one command each."""

__version__ = "0.1.0"
