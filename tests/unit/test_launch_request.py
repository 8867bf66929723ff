"""A request of launch: its fields are the parameters of the method, and a document of it makes it once more."""

from __future__ import annotations

import inspect
import json

import fleet
from fleet.requests.launch import Launch


def test_a_program_sees_the_fields() -> None:
    """help() and editors: the method's parameters are the request's."""
    of_method, of_request = inspect.signature(fleet.api.Fleet.launch), inspect.signature(Launch)
    assert list(of_method.parameters) == ["self", *of_request.parameters]
    assert of_method.parameters["lease"].default == 120.0


def test_a_document_makes_the_same_request_once_more() -> None:
    asked = Launch("t.py", ["--lr", "1"], env={"A": "1"}, nnodes="2:4", lease=None, options={"per": "node"}, sync=True)
    document = json.loads(json.dumps(asked.document))
    assert Launch.of(document) == asked
    assert document["per"] == "node" and "grace" not in document
