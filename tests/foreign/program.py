"""A program of somebody else's, and how both sides start it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

WRITTEN = Path(__file__).with_name("written")
TORCH = find_spec("torch")
assert TORCH and TORCH.origin
SITE = Path(TORCH.origin).parents[1]
BIN = SITE.parents[2] / "bin"  # torchrun and its like, and their interpreter
WORK = "/root/foreign"  # on every host: where both sides start a program, one after the other
PACKAGES = "/root/packages"  # sets of packages.py


@dataclass(frozen=True)
class Program:
    """origin: the package that has it, unmodified; else what its shape is. launcher: also "ssh", torchrun's ranks by
    hand; a "script" or a program once a "node", which start ranks of their own. words: what stands behind it, {site},
    {set} and {port} filled in. options: of the launcher, in torchrun's words, which are fleet's too.

    nodes, ranks: how many nodes, and ranks on each. code: what both end with, as fleet counts (128+n for a signal).
    package: the set that it needs. varies: pattern -> what it is, in outputs and names of files, that no two runs have
    alike. loose: pattern of files whose bytes vary. ordered: its lines come in the same order each time. floating:
    which node has which rank is left to the rendezvous. known: pattern of a difference -> why it is one.
    """

    name: str
    origin: str
    words: tuple[str, ...]
    launcher: str = "torchrun"
    nodes: int = 2
    ranks: int = 1
    code: int = 0
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    package: str = ""
    public: bool = False
    varies: Mapping[str, str] = field(default_factory=dict)
    loose: str = ""
    ordered: bool = True
    floating: bool = False
    known: Mapping[str, str] = field(default_factory=dict)

    def filled(self, port: int = 0) -> list[str]:
        values = {"{site}": str(SITE), "{set}": f"{PACKAGES}/{self.package}", "{port}": str(port)}
        words = list(self.words)
        for name, value in values.items():
            words = [word.replace(name, value) for word in words]
        return words

    @property
    def environment(self) -> dict[str, str]:
        path = {"PYTHONPATH": f"{PACKAGES}/{self.package}"} if self.package else {}
        return {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **path, **self.env}
