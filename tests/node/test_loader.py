"""Modules come with their code: a python of the head's kind need not compile them, any other does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.protocol.frames import PREAMBLE
from fleet.transport import program
from fleet.transport.program import BOOT, closure, compiled, pack

MODULE, SPEC = "fleet.node.run.list_runs", b'{"prefix": "", "live": true}\n'


def said(python: str, sent: bytes, home: Path) -> tuple[bytes, str]:
    done = subprocess.run(
        [python, "-I", "-S", "-c", BOOT], input=sent, capture_output=True, env={**os.environ, "HOME": str(home)}
    )
    return done.stdout, done.stderr.decode()


def with_code(*, broken: bool) -> bytes:
    """broken: no python compiles the texts."""
    texts = closure(MODULE)
    codes = {name: compiled(name) for name, text in texts.items() if text}
    if broken:
        texts = {name: text and b"this is no python\n" for name, text in texts.items()}
    return pack(MODULE, texts, codes) + SPEC


def test_a_python_of_the_heads_kind_compiles_nothing(tmp_path: Path) -> None:
    out, errors = said(sys.executable, with_code(broken=True), tmp_path)
    assert out.startswith(PREAMBLE) and b'"runs": []' in out, errors


def test_any_other_compiles_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "KIND", ("cpython-27", b"none"))
    out, errors = said(sys.executable, with_code(broken=False), tmp_path)
    assert out.startswith(PREAMBLE) and b'"runs": []' in out, errors
    out, errors = said(sys.executable, with_code(broken=True), tmp_path)
    assert not out and 'File "fleet/node/run/list_runs.py", line 1' in errors, errors


def test_code_names_the_file_as_texts_do() -> None:
    assert compiled(MODULE).co_filename == "fleet/node/run/list_runs.py"
