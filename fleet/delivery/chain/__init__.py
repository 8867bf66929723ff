"""Sends files to every host by a pipelined chain: each host writes them and sends them on at once."""
