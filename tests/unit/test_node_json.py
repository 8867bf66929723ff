"""The node half's own way to json, by json's C code alone: it says the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.node.base import json as ours

VALUES: list[Any] = [
    None,
    True,
    -1,
    10**30,
    -2.5,
    1e300,
    float("inf"),
    "",
    'a\u1234\U0001f600\udc80"\\\n\0',
    [],
    {},
    [[{}]],
    (1, "2"),
    {"a": [1, {"b": None}]},
    {1: 2, None: 4, 1.5: 6},
]
TEXTS = [" \n[1]\t", "NaN", "-Infinity", '"\\ud83d\\ude00\\/"', "1e3", "-0"]
BAD = ["", " ", "{", "[1,]", "[1", "1 2", "nul", "\ufeff1", '"\n"', '{"a":1}x', "{'a':1}", "\x0b1", "01", "-", '"\\x"']
SOURCE = Path(ours.__file__)
# argv: its path, the C module, a text. Nothing else has imported json there: then C cannot tell what is wrong.
FRESH = """
import sys
with open(sys.argv[1]) as f:
    source = f.read()
fresh = {"__name__": "fresh"}
exec(source.replace("_json", sys.argv[2]), fresh)
assert ("json" in sys.modules) == (sys.argv[2] != "_json"), "imported, or not"
try:
    print(fresh["dumps"](fresh["loads"](sys.argv[3])))
except ValueError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("value", VALUES, ids=ascii)
def test_it_writes_what_json_writes(value: object) -> None:
    text = ours.dumps(value)
    assert text == json.dumps(value)
    assert ours.loads(text) == json.loads(text)


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_it_reads_what_json_reads(text: str) -> None:
    assert repr(ours.loads(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", BAD, ids=ascii)
def test_it_refuses_what_json_refuses_in_the_same_words(text: str) -> None:
    with pytest.raises(ValueError, match=".") as theirs:
        json.loads(text.strip(" \t\n\r"))
    with pytest.raises(ValueError, match=".") as own:
        ours.loads(text)
    assert str(own.value) == str(theirs.value)


def test_what_is_no_json_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="Object of type bytes is not JSON serializable"):
        ours.dumps({"a": b"x"})


@pytest.mark.parametrize("module", ["_json", "_not_there"])
@pytest.mark.parametrize(
    ("text", "said"), [('{"a": [1]}', '{"a": [1]}'), ("{", "JSONDecodeError"), ("", "JSONDecodeError")]
)
def test_where_json_is_not_imported_and_where_python_has_no_c_code_for_it(module: str, text: str, said: str) -> None:
    argv = [sys.executable, "-I", "-S", "-c", FRESH, str(SOURCE), module, text]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, said + "\n"), done.stderr
