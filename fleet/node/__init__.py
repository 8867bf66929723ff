"""The node half: programs that the head sends to a host, with what they import. Python 3.6, standard library only."""
