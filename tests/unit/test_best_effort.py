"""What a command did without is one line of -v at its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fleet.cli.main import run

FAILED = "could not record the failed hosts for @failed: "
SENT = "could not keep the list of the files that were sent: "
CASES = [
    ("exec -- false", 1, ["1 thing was left out: ", FAILED]),
    ("sync src --to there", 0, ["2 things were left out: ", SENT, "; " + FAILED]),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in ("home", "src"):
        Path(folder).mkdir()
    Path("src/a").write_text("a")
    Path("fleet.yaml").write_text(f"hosts: {{me: {{python: {sys.executable}, workdir: {tmp_path}}}}}\n")


@pytest.mark.parametrize(("line", "code", "texts"), CASES, ids=[line for line, *_ in CASES])
def test_it_is_shown_by_v_alone(line: str, code: int, texts: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    def err(*options: str) -> str:
        assert run([*options, "--transport", "local", *line.split()]) == code
        return " ".join(capfd.readouterr().err.split())

    assert "left out" not in err("-v")
    if Path("home/.fleet").exists():
        Path("home/.fleet").rename("home/aside")
    Path("home/.fleet").write_text("no folder")
    shown = err("-v")
    assert all(text in shown for text in texts) and "Traceback" not in shown, shown
    assert "left out" not in err() and "left out" not in err("-v", "--json")
