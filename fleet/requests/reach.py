"""How hosts are reached, for every request."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.requests.option import option
from fleet.requests.request import Request, within


@dataclass(frozen=True, kw_only=True)
class Reach(Request):
    """fanout: hosts worked on at once. connect_timeout: seconds to reach and authenticate one."""

    fanout: int = option(64, "Hosts worked on at once [64].", metavar="N", limits=within(1, 4096))
    connect_timeout: float = option(
        10.0, "Seconds to reach and authenticate a host [10].", metavar="S", limits=within(0.1, 3600)
    )
