"""The openssh transport, by the `ssh` of this machine. All channels of a host share one connection."""
