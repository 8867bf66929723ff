"""Programs that fail, each in a way of its own, with the cause and the next step that their ends deserve: programs.txt.

`python -m tests.hints.record [NAME ...]` records anew what they write, with the interpreter that it runs in, which has
torch, DeepSpeed and tqdm.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
WAYS = """
import faulthandler, logging, os, queue, resource, signal, socket, subprocess, sys, threading, time, traceback
log = logging.getLogger("train")
logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
def say(*words): print(*words, file=sys.stderr, flush=True)
def steps(n, first=0):
    for i in range(first, first + n): say(f"step {i}: loss 0.{i}")
def fetch(what="reset by s3"): raise ConnectionError(what)
"""


class Program(NamedTuple):
    """how: the command; {python} and {py} stand for the interpreter and the script. cause, hint: a part of each, "-"
    where there is none to be had."""

    name: str
    how: str
    ranks: int
    cause: str
    hint: str
    code: str


def _read(text: str) -> Program:
    about, _, code = text.partition("\n")
    name, how, ranks, cause, hint = (part.strip() for part in about.split(" | "))
    return Program(name, how, int(ranks), cause, hint, code)


PROGRAMS = [_read(text) for text in (HERE / "programs.txt").read_text().split("\n== ")[1:]]


def recorded(program: Program) -> tuple[int, str]:
    """(its exit code, the end of what it wrote)."""
    status, _, tail = (RECORDED / f"{program.name}.txt").read_text().partition("\n")
    return int(status), tail
