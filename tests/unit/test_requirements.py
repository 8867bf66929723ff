"""Requirements as fleet reads them, and the file of its own making that pip gets: no package's setup runs here."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fleet.errors import FleetError, UsageError
from fleet.ops.wheels.download import collect
from fleet.ops.wheels.requirements import Requirements
from tests.in_process import fleet_here
from tests.trap import ground, tarred
from tests.wheelmaker import make_wheel, python_facts

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index but what a test names."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return ground(tmp_path)


def got(text: str | bytes) -> list[str]:
    """What these requirements bring."""
    path = Path("requirements.txt")
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    wheels = fleet_here("h").run(lambda runtime: collect(path, {"h": python_facts()}, runtime))
    return sorted(wheel.path.name for wheel in wheels)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# a remark\u2028./evil\n", r"holds the character U\+2028"),
        ("good\u2029./evil\n", r"U\+2029"),
        ("# a remark\x0c./evil\n", r"U\+000C"),
        ("# a remark\x0b./evil\n", r"U\+000B"),
        ("# a remark\x1c./evil\n", r"U\+001C"),
        ("# a remark\x85./evil\n", r"U\+0085"),
        ("# a remark\r./evil\n", r"U\+000D"),
        ("good\0\n", r"U\+0000"),
        (b"# coding: utf-7\n+AC4ALwBlAHYAaQBs\n", "invalid requirement"),
        (b"\xff\xfe.\0/\0e\0v\0i\0l\0\n\0", "not UTF-8 text"),
        ("${PWD}/evil\n", "is no wheel: pip would run its code"),
        ("evil @ file://${PWD}/evil\n", "is no wheel: pip would run its code"),
        ("${NOSUCHVARIABLE}/evil\n", "NOSUCHVARIABLE, which is not set"),
        ("--only-binary :none:\n--no-index\n--find-links ./links\nevil\n", "does not hand to pip"),
        ("--only-binary=evil,:none:\n", "does not hand to pip"),
        ("./dotted/.whl\n", "is no wheel"),
        ("./tree-1.0-py3-none-any.whl\n", "is no wheel: not a regular file"),
        ("tree-1.0-py3-none-any.whl\n", "is no wheel: not a regular file"),
        ("./evil-1.0-py3-none-any.whl\n", "is no wheel: no .dist-info folder of evil"),
        ("evil @ file:./evil-1.0-py3-none-any.whl\n", "is no wheel"),
        ("good --hash=md5:00\n", "does not hand to pip: --hash"),
        ("good --hash=sha256=00\n", "does not hand to pip: --hash"),
        ("./good-1.0-py3-none-any.whl#sha256:00\n", "no URL of a wheel"),
        ("evil.ZIP\n", "is no wheel"),
        ("./evil.ZIP\n", "is no wheel"),
        ("good===1.0+evil.zip\n", "is no wheel"),
        ("good==1.0+evil.tar.gz ; python_version > '3'\n", "is no wheel"),
        ('good ; platform_version != "x --no-binary :all:"\n', "an option that fleet does not hand to pip"),
        ('good ; platform_version != "x #"\n', "invalid requirement"),
        ('good ; platform_version != "a\\tb"\n', "pip would read in another way"),
        ("evil @ https://example.org/evil-1.0-py3-none-any.whl#egg=evil&subdirectory=x\n", "no URL of a wheel"),
        ("evil @ git+https://example.org/evil-1.0-py3-none-any.whl\n", "no place that fleet hands to pip"),
        ("evil @ https://example.org/a;b/evil-1.0-py3-none-any.whl\n", "is no wheel"),
        ("--find-links ftp://example.org/\n", "no place"),
        ("--find-links ./evil.zip\n", "does not hand to pip"),
        ("--index-url 'https://example.org/ --no-binary'\n", "no place"),
        ("--trusted-host '*'\n", "does not hand to pip"),
        ("-r https://example.org/r.txt\n", "not on this machine"),
        ("-r requirements.txt\n", "it includes itself"),
        ("-c /dev/zero\n", "not a regular file"),
        ("-c fifo\n", "not a regular file"),
        ("-r links\n", "not a regular file"),
        ("good" + " " * 70000 + "\n", "is longer than"),
        ("good" + " " * 65000 + "!\n", "invalid requirement"),
        ("good\t==1.0+x.whl\n", "is no wheel"),
        ("(" * 60000 + "\n", "invalid requirement"),
        ("good ; " + "(" * 60000 + "\n", "invalid requirement"),
        ("./" + "a" * 5000 + "-1.0-py3-none-any.whl\n", "is no wheel: File name too long"),
        ("-f " + "a" * 5000 + "\n", "does not hand to pip"),
        ("-r " + "a" * 5000 + "\n", "File name too long"),
        ("-r loop\n", "symbolic links"),
        ("good\u00a0>1\n", "not printable"),
        ("g\u043eod\n", "invalid requirement"),
    ],
)
def test_what_pip_would_read_in_another_way_is_refused_by_its_line(
    mark: Path, text: str | bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PWD", os.getcwd())
    os.mkfifo("fifo")
    os.symlink("loop", "loop")
    with pytest.raises(UsageError, match=says) as caught:
        got(text)
    assert caught.value.hint and (caught.value.where or "UTF-8" in says)
    assert caught.value.message.isprintable()
    assert not mark.exists()


def test_a_file_without_end_and_includes_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("good\n" * 500_000)
    for i in range(200):
        (tmp_path / f"{i}.txt").write_text(f"-r {i + 1}.txt\n")
    with pytest.raises(UsageError, match="more than 2 MiB"):
        Requirements(tmp_path / "big.txt")
    with pytest.raises(UsageError, match=r"more than 100 files") as caught:
        Requirements(tmp_path / "0.txt")
    assert caught.value.where == f"{tmp_path}/99.txt:1"


@pytest.mark.parametrize("name", ["lure", "zipped", "treed", "cloned"])
def test_what_a_wheel_depends_on_is_not_set_up_here_either(
    mark: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A wheel may name an archive, a folder or a repository, which --only-binary does not keep pip from."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_BINARY", "evil")
    monkeypatch.setenv("PIP_FIND_LINKS", "links")
    with pytest.raises(UsageError, match="evil.* is no wheel: pip would run its code") as caught:
        got(f"{name}\n")
    assert "fleet build" in str(caught.value.hint) and not mark.exists()


@contextlib.contextmanager
def index(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_index_that_has_only_the_source_of_a_package_gives_nothing(mark: Path, tmp_path: Path) -> None:
    (tmp_path / "simple/evil").mkdir(parents=True)
    tarred(tmp_path / "evil", tmp_path / "simple/evil/evil-1.0.tar.gz")
    with index(tmp_path / "simple") as url, pytest.raises(FleetError, match="No matching distribution found for evil"):
        got(f"-i {url}\nevil\n")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "brings"),
    [
        ("good ; python_version > '3'  # a remark\n", ["good-2.0-py3-none-any.whl"]),
        ("# gr\u00fc\u00dfe\ngood \\\n  <2\n-f .\n", ["good-1.0-py3-none-any.whl"]),
        ("\ufeffgood\r\n", ["good-2.0-py3-none-any.whl"]),
        ("-c sub/less.txt\ngood\n-f .\n", ["good-1.0-py3-none-any.whl"]),
        ("--requirement=sub/more.txt\n", ["spaced-1.0-py3-none-any.whl"]),
        ("./a b/spaced-1.0-py3-none-any.whl ; python_version > '3'\n", ["spaced-1.0-py3-none-any.whl"]),
        ("good-1.0-py3-none-any.whl[x]\n", ["good-1.0-py3-none-any.whl"]),
        ("Good @ file://${PWD}/good-1.0-py3-none-any.whl#egg=good\n", ["good-1.0-py3-none-any.whl"]),
        ("spaced\n--find-links 'a b'\n--pre\n", ["spaced-1.0-py3-none-any.whl"]),
    ],
)
def test_what_honest_requirements_bring(
    mark: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, brings: list[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "links")
    monkeypatch.setenv("PWD", str(tmp_path))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/less.txt").write_text("good<2\n")
    (tmp_path / "sub/more.txt").write_text("../a b/spaced-1.0-py3-none-any.whl\n")
    assert got(text) == brings and not mark.exists()


def test_the_file_that_pip_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    make_wheel(tmp_path / "wh\u00e4els", "a")
    (tmp_path / "r.txt").write_text(
        "Foo.Bar [z,y]>=1,<2; python_version > '3.8' and os_name=='posix' --hash=sha256:aa --hash sha256:bb\n"
        "--extra-index-url=https://u:${TOKEN}@example.org/x -i https://example.org/first\n--only-binary foo\n"
        "--index-url https://example.org/simple --trusted-host example.org:8080\n--pre\n--require-hashes\n"
        "b[c] @ https://example.org/b-1.0-py3-none-any.whl?sig=a%2Fb#sha256=00 ; os_name == 'posix'\n"
        "https://example.org/b-1.0-py3-none-any.whl\nwh\u00e4els/a-1.0-py3-none-any.whl\n-f wh\u00e4els\n"
        "-c c.txt\n"
    )
    (tmp_path / "c.txt").write_text("numpy==1.26.0\n")
    asked = Requirements(tmp_path / "r.txt")
    place = f"{tmp_path.as_uri()}/wh%C3%A4els"
    assert asked.text().splitlines() == [
        "--index-url https://example.org/simple",
        "--extra-index-url https://u:s3cret@example.org/x",
        "--only-binary foo",
        "--trusted-host example.org:8080",
        "--pre",
        "--require-hashes",
        f"--find-links {place}",
        'foo-bar[y,z]<2,>=1 ; python_version > "3.8" and os_name == "posix" --hash=sha256:aa --hash=sha256:bb',
        'b[c] @ https://example.org/b-1.0-py3-none-any.whl?sig=a%2Fb#sha256=00 ; os_name == "posix"',
        "b @ https://example.org/b-1.0-py3-none-any.whl",
        f"a @ {place}/a-1.0-py3-none-any.whl",
    ]
    assert asked.constraints() == "numpy==1.26.0\n" and [*asked.wheels] == [
        tmp_path / "wh\u00e4els/a-1.0-py3-none-any.whl"
    ]


def test_a_pip_of_the_path_is_kept_from_it_too(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where fleet lives in an environment that has no pip."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "links")
    assert got("good\n") == ["good-2.0-py3-none-any.whl"]
    with pytest.raises(UsageError, match="is no wheel: pip would run its code"):
        got("lure\n")
    assert not mark.exists()
