"""Makes torchrun's arguments on one node, for runs from a head and for runs of containers."""

from fleet.node.base.wire import at_port

# For an elastic run (an agent is torchrun's process on a node): the seconds for which agents wait for further agents
# after there are enough; the seconds between heartbeats, of which three may be missed; and how often failed ranks are
# started again. Ranks also fail when a node is lost.
PATIENCE, RESTARTS = "last_call_timeout=15,keep_alive_interval=3", 3
# The agents' store outlives an attempt. By default, ranks share the store, and find entries of earlier ranks in it:
# gloo then connects to ports on which no process listens any more. This variable gives each attempt its own store and
# port. If fleet itself starts a run again, it starts new agents with another port, so the variable is not needed.
RESTARTABLE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def torchrun_options(
    run: str, nodes: int, least: int, ranks: int, node: int, address: str, port: int, own: "str | None", restarts: int
) -> "list[str]":
    """Returns torchrun's options. nodes: the most nodes. least: the fewest nodes of an elastic run, otherwise 0. ranks:
    ranks on this node. node: the node rank. address, port: where nodes meet. own: this node's address."""
    found = ["--nnodes=" + ("%d:%d" % (least, nodes) if least else "%d" % nodes), "--nproc-per-node=%d" % ranks]
    found.append("--rdzv-id=" + run)  # only this run has this id and the port, so that two runs never join
    if least:
        # is_host is set, as torchrun would guess it from host names. The backend c10d orders nodes by address: torchrun
        # chooses the ranks of each node, and fleet reads these numbers from the ranks' reports
        found += ["--rdzv-backend=c10d", "--rdzv-endpoint=" + at_port(address, port)]
        found += ["--rdzv-conf=is_host=%d,%s" % (node == 0, PATIENCE), "--max-restarts=%d" % (restarts or RESTARTS)]
    else:
        found += ["--node-rank=%d" % node, "--master-addr=" + address, "--master-port=%d" % port, "--max-restarts=0"]
    return found + (["--local-addr=" + own] if own else [])
