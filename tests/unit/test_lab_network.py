"""Which addresses a lab takes, and how rates read."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from fleet.errors import LabError, UsageError
from fleet.lab import switch


def test_the_earlier_network_is_kept_when_it_is_free() -> None:
    assert switch.choose_network([], "198.18.40.0/22", "fl00000000") == IPv4Network("198.18.40.0/22")


def test_the_earlier_network_is_left_to_who_took_it() -> None:
    taken = [IPv4Network("198.18.40.0/22"), IPv4Network("10.0.0.0/8")]
    chosen = switch.choose_network(taken, "198.18.40.0/22", "fl00000000")
    assert chosen == IPv4Network("198.18.0.0/22")


def test_labs_never_overlap_until_the_range_is_full() -> None:
    taken: list[IPv4Network] = []
    for n in range(64):
        chosen = switch.choose_network(taken, None, f"fl{n * 7919:08x}")
        assert chosen.subnet_of(switch.RANGE)
        assert not any(chosen.overlaps(other) for other in taken)
        taken.append(chosen)
    with pytest.raises(LabError, match="no free network"):
        switch.choose_network(taken, None, "fl00000000")


def test_a_tunnel_over_the_whole_range_is_named() -> None:
    with pytest.raises(LabError, match=r"198\.18\.0\.0/16"):
        switch.choose_network([IPv4Network("198.18.0.0/16")], None, "fl00000000")


def test_the_last_host_has_an_address_of_its_own() -> None:
    network = IPv4Network("198.18.4.0/22")
    assert switch.head_address(network) == "198.18.4.1"
    assert switch.host_address(network, 1) == "198.18.4.11"
    assert IPv4Network(f"{switch.host_address(network, switch.MAX_HOSTS)}/32").subnet_of(network)
    assert switch.mac("198.18.4.11") == "02:00:c6:12:04:0b"


@pytest.mark.parametrize(
    ("text", "bits"),
    [("200mbit", 200_000_000), ("1gbit", 10**9), ("1.5gbit", 1_500_000_000), ("512Kbit", 512_000), ("9000bit", 9000)],
)
def test_rates(text: str, bits: int) -> None:
    assert switch.parse_rate(text) == bits


@pytest.mark.parametrize("text", ["200", "mbit", "-1mbit", "1bit", "200mbit; id", "nan", "", "1e9bit", "9999999gbit"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match="not a rate") as refused:
        switch.parse_rate(text)
    assert "200mbit" in (refused.value.hint or "")


def test_a_failed_tool_speaks_for_itself() -> None:
    with pytest.raises(LabError, match="sh failed: no such card"):
        switch.run(["sh", "-c", "echo no such card >&2; exit 2"])
