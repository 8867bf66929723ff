"""How an inventory that is there is added to, and how a new one is written."""

from __future__ import annotations

import pytest

from fleet.inventory.write import Edit, render
from tests.inventories import OLD, yaml


def test_what_is_added_leaves_the_rest_as_it_is() -> None:
    edit = Edit(OLD)
    for name in ("gpu1", "gpu2", "gpu3"):
        assert edit.add_fields(name, {"data_address": "10.0.0.1", "python": "~/x y/python"})
    assert not edit.add_fields("gpu5", {"python": "/x"})
    assert edit.add_host("new1", {"address": "1.2.3.4"}, "8 x H100") and edit.add_host("new2", {}, None)
    more = "data_address: 10.0.0.1, python: ~/x y/python}"
    assert edit.text == OLD.replace("{slots: 8}", "{slots: 8, " + more).replace(
        "    port: 33", "    data_address: 10.0.0.1\n    python: ~/x y/python\n    port: 33"
    ).replace("gpu3:", "gpu3: {" + more).replace(
        "# twins\n", "# twins\n  # 8 x H100\n  new1: {address: 1.2.3.4}\n  new2: {}\n"
    )
    assert yaml(edit.text).host("gpu2").port == 33


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hosts: {a: {}, b: {slots: 2}}", "hosts: {a: {port: 3}, b: {slots: 2}, c: {port: 3}}"),
        ("hosts:\n  a:", "hosts:\n  a: {port: 3}\n  c: {port: 3}\n"),
        ("hosts:\n  a: {slots: 2}  # x\n\n# end\n", "hosts:\n  a: {slots: 2, port: 3}  # x\n  c: {port: 3}\n\n# end\n"),
        ("x: &x {}\nhosts:\n  a: *x\n", None),
        ("hosts:\n  a: &x {}\n  b: *x\n", None),
        ("hosts:\n  a: {port: null}\n", None),
        ("hosts: [a, b]\n", None),
    ],
)
def test_forms_of_an_old_file(old: str, new: str | None) -> None:
    edit = Edit(old)
    placed = edit.add_fields("a", {"port": 3}), edit.add_host("c", {"port": 3}, None)
    assert edit.text == new if new else not all(placed)


def test_a_new_file_says_once_what_holds_for_all() -> None:
    inventory = yaml(
        "defaults: {user: root}\nenv: {A: '1'}\nhosts:\n  a: {devices: [0, 2], env: {B: 'x: y'}}\n  b: {slots: 2}\n"
        "groups: {g: a}\nsync: {data: [/x]}",
    )
    text = render(inventory, ["hello"], {"a": "the big one"})
    assert text.startswith("# hello\ndefaults:\n  user: root\nenv:\n  A: '1'\nhosts:\n  # the big one\n  a: {")
    again = yaml(text)
    assert (again.hosts, again.env, again.groups, again.sync) == (
        inventory.hosts,
        inventory.env,
        inventory.groups,
        inventory.sync,
    )
