"""The openssh transport: the `ssh` of this machine, one connection a host that all its channels share."""
