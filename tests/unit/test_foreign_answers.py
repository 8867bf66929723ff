"""What others say in the place of what was asked of them: each by its name."""

from __future__ import annotations

import pytest

from fleet.ops.wheels.download import _UNREACHED
from fleet.transport.shell import foreign


@pytest.mark.parametrize(
    "said",
    [
        "WARNING: Your password has expired.\nPassword change required but no TTY available.\n",
        "Password change required but no TTY available.\n",
        "You are required to change your password immediately (administrator enforced).\nYour password has expired.\n",
    ],
)
def test_an_expired_password(said: str) -> None:
    error = foreign("gpu1", said.encode())
    assert error.kind == "auth" and "password has expired there" in error.message and "set a new one" in str(error.hint)


@pytest.mark.parametrize("said", ["Welcome to gpu1", "your password is your own", ""])
def test_any_other_answer(said: str) -> None:
    error = foreign("gpu1", said.encode())
    assert error.kind == "protocol" and "the login shell did not start fleet's program" in error.message


RETRYING = "WARNING: Retrying (Retry(total=0, connect=None, redirect=None, status=None)) after connection broken by "


@pytest.mark.parametrize(
    ("said", "unreached"),
    [
        (
            f"{RETRYING}'NewConnectionError('<pip._vendor.urllib3.connection.HTTPConnection object at 0x7f>: Failed to "
            "establish a new connection: [Errno 111] Connection refused')': /simple/tqdm/",
            True,
        ),
        (
            f"{RETRYING}'ReadTimeoutError(HTTPSConnectionPool(host='i', port=443): Read timed out. (timeout=15))'",
            True,
        ),
        (f"{RETRYING}'ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407'))'", True),
        ("ERROR: HTTP error 403 while getting x\nERROR: 403 Client Error: Forbidden for url: https://i/x", True),
        ("ERROR: No matching distribution found for nosuchpackage-xyz-123", False),
        ("ERROR: Could not find a version that satisfies the requirement tqdm==0.0.1 (from versions: 4.0, 4.1)", False),
    ],
)
def test_a_package_index_that_is_not_reached(said: str, unreached: bool) -> None:
    assert (_UNREACHED.search(said) is not None) == unreached
