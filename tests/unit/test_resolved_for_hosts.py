"""Requirements are resolved by pip on the head for other interpreters: their markers, tags and version, what they
have. What they say that they have is a peer's word."""

from __future__ import annotations

from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.ops.wheels.download import collect
from fleet.ops.wheels.present import breaks, present, write_metadata
from tests.in_process import fleet_here
from tests.wheelmaker import make_wheel, offline_index, python_facts


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return offline_index(tmp_path, monkeypatch)


def dist(name: str, version: str = "1.0", requires: Any = (), extras: Any = ()) -> dict[str, Any]:
    return {"name": name, "version": version, "requires": [*requires], "extras": [*extras]}


def got(index: Path, text: str, **hosts: dict[str, Any]) -> list[str]:
    """What travels."""
    (index.parent / "r.txt").write_text(text)
    wheels = fleet_here("h").run(lambda runtime: collect(index.parent / "r.txt", hosts, runtime))
    return sorted(wheel.path.name for wheel in wheels)


@pytest.mark.slow
def test_markers_tags_and_version_are_the_hosts(index: Path) -> None:
    make_wheel(index, "top", requires=["old ; python_version < '3.9'", "new ; python_full_version >= '3.8.2'"])
    make_wheel(index, "old", "1.0", tag="cp38-cp38-manylinux_2_17_x86_64")
    make_wheel(index, "old", "2.0", headers=["Requires-Python: >=3.8.2"])
    make_wheel(index, "old", "3.0", tag="cp38-cp38-manylinux_2_28_x86_64")
    make_wheel(index, "old", "4.0", tag="cp311-cp311-linux_x86_64")
    hosts = {"new": python_facts("3.8.9", glibc=36), "old": python_facts("3.8.1", glibc=17)}
    expected = ["old-1.0-cp38-cp38-manylinux_2_17_x86_64.whl", "top-1.0-py3-none-any.whl"]
    assert got(index, "top\n", **hosts) == expected
    # an extra of what is there is looked at, too
    has = [dist("top", requires=["old", "new ; extra == 'x'"], extras=["x"]), dist("old")]
    make_wheel(index, "new")
    assert got(index, "top[x]\n", h=python_facts(dists=has)) == ["new-1.0-py3-none-any.whl"]


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,9}[A-Za-z0-9])?", fullmatch=True)
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
MARKER = st.sampled_from(
    ["", " ; os_name ~= '1.0'", " ; extra == 'x'", " ; nosuch > '1'", " ; os_name == 'a\"b'", " ; '('"]
)
NEED = st.one_of(
    TEXT, st.tuples(NAMES, st.sampled_from(["", ">=1", " @ file:///etc/passwd", "[x]<2", "===~"]), MARKER).map("".join)
)
DISTS = st.lists(
    st.fixed_dictionaries(
        {
            "name": NAMES,
            "version": st.one_of(TEXT, st.just("1.0+a")),
            "requires": st.lists(NEED),
            "extras": st.lists(NAMES),
        }
    )
)


@given(DISTS)
def test_metadata_of_a_peer_is_written_again_by_its_names_and_versions(
    tmp_path_factory: pytest.TempPathFactory, dists: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("site")
    found = python_facts(dists=dists)
    write_metadata(present(found), folder)
    written = {path.relative_to(folder).parts for path in folder.rglob("*") if path.is_file()}
    assert len(written) <= len(dists)
    for info, name in written:
        assert name == "METADATA" and info.endswith(".dist-info") and info.count("-") >= 1
        text = (folder / info / name).read_text("ascii")
        fields = HeaderParser().parsestr(text)
        assert {*fields.keys()} <= {"Metadata-Version", "Name", "Version", "Provides-Extra", "Requires-Dist"}
        assert not fields.get_payload() and "file:" not in text and " @ " not in text
    assert breaks(found, ()) == []
