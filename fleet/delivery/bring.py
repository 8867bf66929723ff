"""A folder to every host by the carrier that pays: the chain, or a copy from here for each."""

from __future__ import annotations

from pathlib import Path

from fleet.delivery import mirror
from fleet.delivery.chain import transfer
from fleet.delivery.chain.transfer import Broadcast, Item
from fleet.delivery.mirror import Mirror
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Host, Result
from fleet.requests.sync import Sync
from fleet.runtime import Runtime

# what a broadcast reports of a host that its neighbours did not serve, and the head may
CHAIN_KINDS = ("unreachable", "slow", "stalled")
# From here on hosts hand it on to each other; below it, starting that costs more than it saves.
CHAIN_BYTES = 32 << 20


def bring(hosts: tuple[Host, ...], folder: Path, there: str, size: int, runtime: Runtime) -> tuple[Result, ...]:
    """Make `there` on every host what `folder` is, `size` bytes. A host that failed by itself ends it: the others do
    not get a copy from here either."""
    done: dict[str, Result] = {}
    if size >= CHAIN_BYTES and len(hosts) > 1:
        item = Item(folder, {h.name: there for h in hosts})
        done = {r.host: r for r in transfer.run(Broadcast(hosts, (item,)), runtime).results}
    failed = {r.host: r.error for r in done.values() if r.error is not None}
    left = tuple(h for h in hosts if h.name not in done or h.name in failed)
    if left and all(error.kind in CHAIN_KINDS for error in failed.values()) and not runtime.cancel.is_set():
        if done:
            runtime.emit(Notice("warning", f"the broadcast did not reach {fold(failed)}: each gets its own copy"))
        plan = Mirror(left, folder, {h.name: there for h in left}, Sync(force=True, max_delete="all"), whole=True)
        done |= {r.host: r for r in mirror.run(plan, runtime).results}
    return tuple(done[h.name] for h in hosts)
