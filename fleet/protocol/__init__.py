"""Defines the messages between head and nodes, and the files that nodes keep: each once.

`frames` and `state` run on both sides: Python 3.6, and nothing imported that takes time to start. The messages, a
module for each program, are TypedDicts: the node half names them in annotations only, the head reads what nodes send
with `decode`. Imports nothing of fleet."""
