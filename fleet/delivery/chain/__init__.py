"""Files to every host by a pipelined chain of them: each writes and sends on at once."""
