"""torchrun's arguments on one node, for each run that fleet starts it in."""

from fleet.node.base.wire import at_port

# Of an elastic world: seconds that agents wait for more of them once there are enough, and that one may be silent, of
# which there are three; and how often ranks that fail are started again, as they do where a node is lost.
PATIENCE, RESTARTS = "last_call_timeout=15,keep_alive_interval=3", 3
# The agents' store outlives an attempt, and ranks that share it, as is torch's default, find there what those before
# them left: gloo then dials ports that no process listens on any more. So each attempt has a store, and a port, of its
# own; where fleet itself starts a run again, new agents and another port see to that.
RESTARTABLE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def torchrun_options(
    run: str, nodes: int, least: int, ranks: int, node: int, address: str, port: int, own: "str | None", restarts: int
) -> "list[str]":
    """Returns its options. least: of an elastic world, nodes that must be left, else 0. own: this node's address."""
    found = ["--nnodes=" + ("%d:%d" % (least, nodes) if least else "%d" % nodes), "--nproc-per-node=%d" % ranks]
    found.append("--rdzv-id=" + run)  # it belongs to this run alone, as the port: two runs never join each other
    if least:
        # is_host is given, not guessed from host names. c10d orders nodes by address: the ranks that a node
        # gets are torchrun's choice here, and are read from what the ranks report
        found += ["--rdzv-backend=c10d", "--rdzv-endpoint=" + at_port(address, port)]
        found += ["--rdzv-conf=is_host=%d,%s" % (node == 0, PATIENCE), "--max-restarts=%d" % (restarts or RESTARTS)]
    else:
        found += ["--node-rank=%d" % node, "--master-addr=" + address, "--master-port=%d" % port, "--max-restarts=0"]
    return found + (["--local-addr=" + own] if own else [])
