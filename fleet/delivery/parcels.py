"""What hosts lack of a tree, read once however many they are: small files, many in one message; digests of others."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator, Sequence

from fleet.delivery.tree import Tree, with_payload

PARCEL_BYTES = 1 << 20
KEEP_BYTES = 256 << 20
Item = tuple[str, int, int]  # path, offset, length


class Parcels:
    """Control lines for node/delivery/code_sync.py with zlib data behind them; see node/delivery/stage.py."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._lock, self._hashing = threading.Lock(), threading.Lock()
        self._made: dict[tuple[Item, ...], bytes] = {}
        self._digests: dict[str, str] = {}
        self._kept = 0

    def digests(self, paths: Sequence[str]) -> dict[str, str]:
        """sha256 of files. HostFailed, as of()."""
        with self._hashing:
            for path in [path for path in paths if path not in self._digests]:
                self._digests[path] = self._tree.file_digest(path)
        return {path: self._digests[path] for path in paths}

    def of(self, paths: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        """(message, bytes of the files in it), until all are in. HostFailed for a file that is not any more what the
        tree says."""
        for items in self._batches(paths):
            with self._lock:
                message = self._made.get(items)
                if message is None:
                    message = self._pack(items)
                    if self._kept < KEEP_BYTES:
                        self._made[items] = message
                        self._kept += len(message)
            yield message, sum(length for _path, _offset, length in items)

    def _batches(self, paths: Sequence[str]) -> Iterator[tuple[Item, ...]]:
        batch: list[Item] = []
        room = PARCEL_BYTES
        for path in paths:
            offset, size = 0, self._tree.by_path[path][3]
            while True:
                length = min(size - offset, room)
                batch.append((path, offset, length))
                offset, room = offset + length, room - length
                if room == 0:
                    yield tuple(batch)
                    batch, room = [], PARCEL_BYTES
                if offset == size:
                    break
        if batch:
            yield tuple(batch)

    def _pack(self, items: Sequence[Item]) -> bytes:
        parts = [json.dumps(items).encode() + b"\n", *(self._tree.read(*item) for item in items)]
        return with_payload("parcel", zlib.compress(b"".join(parts), 1))
