"""setup-ssh and nodes that call another's key their own: by telling so, and because they have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.setup_ssh_tools import Head

LIES = """#!/bin/sh
case " $* " in *" -y "*) echo '{key}' ;; *) exec ssh-keygen.true "$@" ;; esac
"""


@pytest.fixture
def two(head: Head) -> Iterator[Head]:
    """A head and two hosts, the second of which may lie."""
    head = head.first(2)
    yield head
    head.lab.sh(head.lab.names[1], "cd /usr/bin; [ ! -e ssh-keygen.true ] || mv ssh-keygen.true ssh-keygen")


def claims(head: Head, key: str) -> None:
    """Has the second host call that key its own, from here on."""
    lies = LIES.format(key=" ".join(key.split()[:2]))
    line = "cd /usr/bin; [ -e $0 ] || cp ssh-keygen $0; cat > new; chmod 755 new; mv new ssh-keygen"
    head.lab.inside(head.lab.names[1], "sh", "-c", line, "ssh-keygen.true", stdin=lies.encode())


def of_head(head: Head) -> str:
    return (head.ssh / "id_ed25519.pub").read_text()


def of_first(head: Head) -> str:
    return head.lab.sh(head.lab.names[0], "cat /root/.ssh/id_ed25519.pub")


@pytest.mark.parametrize("whose, called", [(of_head, "this machine"), (of_first, "first")])
def test_a_claimed_key_is_refused_by_name(whose: object, called: str, two: Head) -> None:
    one, liar = two.lab.names
    assert two.report("--tofu")["pairs"]["verified"] == 4
    before = two.lab.sh(one, "cat /root/.ssh/authorized_keys")
    assert callable(whose)
    claims(two, whose(two))
    for words in ((), ("-w", liar)):
        done = two.report(*words, code=122)
        error = done["hosts"][liar]["error"]
        assert error["kind"] == "key" and (one if called == "first" else called) in error["message"], error
        assert "move ~/.ssh/id_ed25519 away there" in error["hint"]
    assert two.report(code=122)["hosts"][one]["ok"], "it is no fault of who has the key"
    assert two.lab.sh(one, "cat /root/.ssh/authorized_keys") == before


def test_where_nobody_is_known_to_have_had_it_nobody_is_believed(two: Head, tmp_path: Path) -> None:
    one, liar = two.lab.names
    two.lab.sh(one, "mkdir -pm 700 /root/.ssh; ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519")
    two.lab.sh(liar, "mkdir -pm 700 /root/.ssh; ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519")
    claims(two, of_first(two))
    hosts = two.report("--tofu", code=122)["hosts"]
    assert [hosts[name]["error"]["kind"] for name in (one, liar)] == ["key", "key"]


def test_clones_of_one_image_and_of_the_head_have_one_key(two: Head) -> None:
    assert two.setup("--tofu", "-w", two.lab.names[0]).returncode == 0
    private = (two.ssh / "id_ed25519").read_bytes()
    for name in two.lab.names:
        line = "umask 077; mkdir -p /root/.ssh; cat > /root/.ssh/id_ed25519; rm -f /root/.ssh/id_ed25519.pub"
        two.lab.inside(name, "sh", "-c", line, stdin=private)
    assert two.report("--tofu")["pairs"]["verified"] == 4
    assert two.fleet("setup-ssh", "-w", two.lab.names[1]).returncode == 0
