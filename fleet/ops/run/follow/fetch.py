"""Fetches a run's logs from nodes to its folder, outside of the loop of a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fleet.model import Host
from fleet.ops.run.follow.follow import FollowEnd, Follower, FollowEvent, FollowOptions
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.reader import POLL_SECONDS as POLL_SECONDS
from fleet.transport.program import Program


def fetch(
    hosts: Iterable[Host],
    folder: RunFolder,
    how: FollowOptions,
    is_late: Callable[[Follower], bool],
    waiting: Mapping[str, Program] | None = None,
    attempt: int | None = None,
) -> dict[str, FollowEnd]:
    """Fetches the logs of all hosts at once. Returns host -> how following it ended: the host has sent all, or it was
    given up because `is_late` was true. waiting: host -> a program there that waits to start run.follow. attempt: the
    number of the attempt; None: the last one."""
    ends: dict[str, FollowEnd] = {}

    def post(event: FollowEvent) -> None:
        if event.kind == "over":
            ends[event.host] = event.data

    how, waiting = replace(how, post=post), waiting or {}
    followers = [Follower(it, folder.node(it.name, attempt), how, waiting.get(it.name)) for it in hosts]
    for follower in followers:
        follower.start()
    while alive := [follower for follower in followers if follower.is_alive()]:
        for follower in filter(is_late, alive):
            follower.give_up()
        alive[0].join(POLL_SECONDS)
    return ends
