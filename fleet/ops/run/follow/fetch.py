"""Fetches what nodes have of a run's logs to its folder here, where no loop of a launch drives their followers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fleet.model import Host
from fleet.ops.run.follow.follow import Follower, Following, Heard
from fleet.ops.run.kept.folder import RunFolder
from fleet.transport.program import Program

POLL_SECONDS = 0.1


def fetch(
    hosts: Iterable[Host],
    folder: RunFolder,
    how: Following,
    is_late: Callable[[Follower], bool],
    waiting: Mapping[str, Program] | None = None,
    attempt: int | None = None,
) -> list[Heard]:
    """Returns what was received of these hosts, once each has sent all, or is late and was given up. waiting: by host,
    a program there to start with. attempt: whose files theirs are here, None: the last one's."""
    messages: list[Heard] = []
    how, waiting = replace(how, post=messages.append), waiting or {}
    followers = [Follower(it, folder.node(it.name, attempt), how, waiting.get(it.name)) for it in hosts]
    for follower in followers:
        follower.start()
    while alive := [follower for follower in followers if follower.is_alive()]:
        for follower in filter(is_late, alive):
            follower.give_up()
        alive[0].join(POLL_SECONDS)
    return messages


def complete(heard: Iterable[Heard]) -> set[str]:
    """Returns the hosts of which every byte is here."""
    return {each.host for each in heard if each.what == "over" and each.data.complete}
