"""How hosts are reached, whatever is asked of them."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.requests.request import Request, number


@dataclass(frozen=True, kw_only=True)
class Reach(Request):
    """fanout: hosts worked on at once. connect_timeout: seconds to reach and authenticate one."""

    fanout: int = number(64, 1, 4096)
    connect_timeout: float = number(10.0, 0.1, 3600)
