"""What programs of every kind need: the wire, files, locks, processes."""
