"""Defines the messages between head and nodes, and the files that nodes keep; each of them once.

`frames` and `state` run on both sides: in Python 3.6, with fast imports only. The messages are TypedDicts, in a module
for each program. The node half names them only in annotations; the head reads a node's messages with `decode`. This
package imports nothing of fleet."""
