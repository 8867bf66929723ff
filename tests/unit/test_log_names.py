"""Names of logs, as nodes send them: no other file of the head can be named."""

from __future__ import annotations

import pytest

from fleet.codec import Misfit, decode
from fleet.ops.run.kept.logs import stream_of
from fleet.protocol.messages.run import Stream


@pytest.mark.parametrize("name", ["../x", "rank0.out/../../y", "rank0.json", "", "rankX.out", "node.log\n", "/etc/x"])
def test_a_node_cannot_name_files_on_the_head(name: str) -> None:
    with pytest.raises(Misfit, match="name is"):
        decode(Stream, {"event": "stream", "id": 0, "name": name, "offset": 0})


def test_streams() -> None:
    assert stream_of("rank12.err") == (12, "stderr") and stream_of("node.log") == (None, "stderr")
