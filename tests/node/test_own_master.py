"""Where launchers and ranks meet those of other nodes, by their command lines and variables; the lab has it live."""

from __future__ import annotations

import pytest

from fleet.node.run.stacks import is_own, master_of

FLEETS = {"MASTER_ADDR": "fleets", "WORLD_SIZE": "2", "RANK": "1"}


@pytest.mark.parametrize(
    ("argv", "env", "address"),
    [
        ("torchrun --nnodes=2 --node_rank=1 --master_addr=gpu2 train.py", {}, "gpu2"),
        ("python -m torch.distributed.run --nnodes 2 --master-addr gpu2 t.py", {}, "gpu2"),
        ("torchrun --nnodes 1:4 --rdzv_backend c10d --rdzv-endpoint gpu2:29400 t.py", {}, "gpu2:29400"),
        ("accelerate launch --num_machines 2 --main_process_ip gpu2 t.py", {}, "gpu2"),
        ("deepspeed --num_nodes 2 --no_ssh --master_addr=gpu2 t.py", {}, "gpu2"),
        ("torchrun --nnodes=2 t.py", {}, "127.0.0.1"),
        ("torchrun --nnodes=2 t.py", {"PET_MASTER_ADDR": "gpu2"}, "gpu2"),
        # alone in its world, whatever fleet has told the script around it
        ("torchrun --standalone --nproc_per_node=8 t.py", FLEETS, None),
        ("torchrun --nnodes=1 --master_addr=localhost t.py", FLEETS, None),
        ("torchrun --nnodes=1:1 --master_addr=localhost t.py", FLEETS, None),
        # ranks of a script's own
        ("python t.py", {"MASTER_ADDR": "gpu2", "WORLD_SIZE": "2", "RANK": "1"}, "gpu2"),
        ("python t.py", {"MASTER_ADDR": "gpu2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "RANK": "1"}, None),
        ("python t.py", {"MASTER_ADDR": "gpu2", "WORLD_SIZE": "all", "RANK": "1"}, None),
        ("sleep 100", {}, None),
    ],
)
def test_where_it_meets_others(argv: str, env: dict[str, str], address: str | None) -> None:
    found = master_of("\0".join(argv.split()).encode(), {k.encode(): v.encode() for k, v in env.items()})
    assert found == (address and address.encode())


@pytest.mark.parametrize(
    ("address", "own"),
    [("localhost", True), ("127.0.1.1:29500", True), ("[::1]:29500", True), ("192.0.2.7", False), ("a b", False)],
)
def test_addresses_of_this_node(address: str, own: bool) -> None:
    assert is_own(address) is own
