"""Makes the messages that send the files of a tree to hosts that lack them. A parcel packs many small files, and is
made once for all hosts. A large file is sent in blocks, without the blocks that the host already has."""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence

from fleet.delivery.tree import Tree, with_payload
from fleet.node.delivery.stage import BLOCK

PARCEL_BYTES = CHUNK = 1 << 20
SAMPLE_BYTES = 1 << 16  # the end of a parcel, by which fleet tries if compression shrinks it
KEEP_BYTES = 256 << 20  # parcels are kept in memory for further hosts, up to so many bytes


class Parcels:
    """Makes control lines for node/delivery/code_sync.py, each followed by its data; node/delivery/stage.py reads
    them."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._lock, self._hashing = threading.Lock(), threading.Lock()
        self._made: dict[tuple[str, ...], bytes] = {}
        self._digests: dict[str, str] = {}
        self._blocks: dict[tuple[str, int], str] = {}
        self._kept = 0

    def digests(self, paths: Sequence[str]) -> dict[str, str]:
        """Returns path -> sha256. Raises HostFailed if a file has changed since the tree was read."""
        with self._hashing:
            for path in [path for path in paths if path not in self._digests]:
                self._digests[path] = self._tree.file_digest(path)
        return {path: self._digests[path] for path in paths}

    def of(
        self, small: Sequence[str], large: Sequence[str], has: Mapping[str, Mapping[int, str]]
    ) -> Iterator[tuple[bytes, int]]:
        """Yields (message, bytes of files in it) until all files are sent. The message is b"" for a block that the host
        has. has: path -> block number -> sha256 on the host. Raises HostFailed if a file has changed since the tree was
        read."""
        for paths in self._batches(small):
            with self._lock:
                message = self._made.get(paths)
                if message is None:
                    message = self._pack(paths)
                    if self._kept < KEEP_BYTES:
                        self._made[paths] = message
                        self._kept += len(message)
            yield message, sum(self._tree.by_path[path][3] for path in paths)
        for path in large:
            yield from self._of_large(path, has.get(path, {}))

    def _of_large(self, path: str, has: Mapping[int, str]) -> Iterator[tuple[bytes, int]]:
        size = self._tree.by_path[path][3]
        for begin in range(0, size, BLOCK):
            end = min(begin + BLOCK, size)
            if begin // BLOCK in has and has[begin // BLOCK] == self._block(path, begin):
                yield b"", end - begin
                continue
            for at in range(begin, end, CHUNK):
                data = self._tree.read(path, at, min(CHUNK, end - at))
                line = {"op": "block", "path": path, "at": at, "size": len(data)}
                yield json.dumps(line).encode() + b"\n" + data, len(data)

    def _block(self, path: str, at: int) -> str:
        with self._lock:
            if (path, at) not in self._blocks:
                self._blocks[path, at] = hashlib.sha256(self._tree.read(path, at, BLOCK)).hexdigest()
            return self._blocks[path, at]

    def _batches(self, paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
        batch: list[str] = []
        size = 0
        for path in paths:
            batch.append(path)
            size += self._tree.by_path[path][3]
            if size >= PARCEL_BYTES:
                yield tuple(batch)
                batch, size = [], 0
        if batch:
            yield tuple(batch)

    def _pack(self, paths: Sequence[str]) -> bytes:
        files = [self._tree.read(path, 0, self._tree.by_path[path][3]) for path in paths]
        listed = [(path, len(file)) for path, file in zip(paths, files, strict=True)]
        data = b"".join([json.dumps(listed).encode() + b"\n", *files])
        sample = data[-SAMPLE_BYTES:]
        shrinks = len(zlib.compress(sample, 1)) < len(sample) * 0.9  # otherwise compression only costs time
        return with_payload("parcel", zlib.compress(data, int(shrinks)))
