"""Has the node half: the programs that the head sends to a host, and their modules, for Python 3.6 without packages."""
