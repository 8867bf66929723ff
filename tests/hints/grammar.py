"""Ends of logs by a grammar: what was handled, logged, or of a thread or child, then steps, then the true end.

made(SEED) is one; the same seed makes the same. Where two truths would leave the same text (a traceback that a module
printed as it was imported, two other lines, a silent exit with 1) neither is made.
"""

from __future__ import annotations

import random
from typing import NamedTuple

HEADER = "Traceback (most recent call last):"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
EXCEPTIONS = (
    "ConnectionError: reset by s3",
    "OSError: [Errno 98] Address already in use",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-3.bin'",
    "KeyError: 'input_ids'",
    "ValueError: batch 17 is empty",
    "botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL",
    "ModuleNotFoundError: No module named 'flash_attn'",
    "RuntimeError: expected scalar type Float but found Half",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
)
TEXTS = ("no shards in /data/c4", "validation failed on 3 of 9 sets", "error: lr must be positive", "giving up")
SIGNALS = {10: "SIGUSR1", 12: "SIGUSR2", 24: "SIGXCPU", 25: "SIGXFSZ", 11: "SIGSEGV", 9: None, 15: None}
FUNCTIONS = ("main", "fit", "train_step", "load", "fetch", "collate")


class End(NamedTuple):
    """cause: a part of it, None for none."""

    text: str
    status: int
    cause: str | None


def made(seed: int) -> End:
    return _Maker(random.Random(f"end {seed}")).end()


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.step = rng, rng.randrange(90)

    def end(self) -> End:
        before = self.steps(self.rng.randrange(1, 9))
        for _ in range(self.rng.randrange(3)):
            before += self.past(goes_on=True) + self.steps(self.rng.randrange(1, 20))
        if self.rng.random() < 0.3:  # at once before the end
            before += self.past()
        text, status, cause = self.rng.choice(
            (self.uncaught, self.uncaught, self.chained, self.wrapped, self.text, self.silent, self.signal, self.waits)
        )(before)
        return End(before + text, status, cause)

    # -- parts ------------------------------------------------------------------------------------------------
    def steps(self, count: int) -> str:
        lines = ""
        for _ in range(count):
            self.step += 1
            lines += f"step {self.step}: loss 0.{self.rng.randrange(1000)}\n"
        return lines

    def trace(self, exception: str, top: str = "<module>", raises: str = "") -> str:
        """top: the outermost function. raises: the innermost, which raises it by hand."""
        names = [top, *self.rng.sample(FUNCTIONS, self.rng.randrange(1, 4)), *([raises] if raises else [])]
        frames = ""
        for n, name in enumerate(names):
            code = "raise Error(text) from e" if raises and n == len(names) - 1 else f"{self.rng.choice(FUNCTIONS)}(x)"
            frames += f'  File "/root/work/train.py", line {self.rng.randrange(200)}, in {name}\n    {code}\n'
        return f"{HEADER}\n{frames}{exception}\n"

    def past(self, goes_on: bool = False) -> str:
        """A traceback that ended nothing: of the program itself, which went on, of a thread, of a child. goes_on: more
        steps follow."""
        exception = self.rng.choice(EXCEPTIONS)
        kind = self.rng.randrange(7 if goes_on else 6)
        if kind == 6:  # a plugin that is not there, as a module is imported
            return self.trace(exception)
        if kind == 0:
            return self.trace(exception, "retry_load")
        if kind == 1:
            return "2026-11-28 23:55:04,611 ERROR no batch\n" + self.trace(exception, "retry_load")
        if kind == 2:
            return self.threads(exception)
        if kind == 3:
            return "Process ForkProcess-1:\n" + self.trace(exception, "_bootstrap")
        if kind == 4:
            return f'{HEADER}\n  File "<string>", line 1, in <module>\n{exception}\n'
        return "Exception ignored in: <function Loader.__del__ at 0x7f8e>\n" + self.trace(exception, "__del__")

    def threads(self, exception: str) -> str:
        return "Exception in thread Thread-1 (feed):\n" + self.trace(exception, "_bootstrap_inner")

    def after(self) -> str:
        """What others write behind an exception that nobody caught."""
        return self.rng.choice(
            (
                "",
                "",
                "[W1128 23:55:04.611 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called\n",
                "/opt/lib/python3.11/resource_tracker.py:254: UserWarning: 1 leaked semaphore\n  warnings.warn(x)\n",
                "metrics are flushed\n",
                "Exception ignored in: <function Pool.__del__ at 0x7f8e>\n" + self.trace("OSError: gone", "__del__"),
                self.threads("RuntimeError: cannot schedule new futures after interpreter shutdown"),
            )
        )

    # -- ends -------------------------------------------------------------------------------------------------
    def ends(self, trace: str, cause: str) -> tuple[str, int, str]:
        if self.rng.random() < 0.5:  # as torch writes it
            trace = "".join(f"[rank3]: {line}\n" if line else "\n" for line in trace.splitlines())
        if self.rng.random() < 0.2 and trace.startswith((HEADER, "[rank3]: " + HEADER)):
            trace = (
                f"\r 44%|####      | 44/99 [00:01<00:02, 31.2it/s]\r 45%|####5     | 45/99 [00:01<00:02, 31it/s]{trace}"
            )
        return trace + self.after(), 1, cause

    def uncaught(self, before: str) -> tuple[str, int, str | None]:
        exception = self.rng.choice(EXCEPTIONS)
        return self.ends(self.trace(exception), exception)

    def chained(self, before: str) -> tuple[str, int, str | None]:
        root, other = self.rng.sample(EXCEPTIONS, 2)
        kind = self.rng.randrange(4)
        if kind == 0:
            return self.ends(self.trace(root, "load") + DIRECT + self.trace(other), root)
        if kind == 1:  # raised by what handled it
            return self.ends(self.trace(root, "load") + DURING + self.trace(other, raises="load"), root)
        if kind == 2:  # what handled it failed
            return self.ends(self.trace("StopIteration", "load") + DURING + self.trace(root), root)
        middle = self.trace("RuntimeError: no batch", "load")
        return self.ends(self.trace(root, "fetch") + DIRECT + middle + DIRECT + self.trace(other), root)

    def wrapped(self, before: str) -> tuple[str, int, str | None]:
        root = self.rng.choice(EXCEPTIONS)
        kind, name = self.rng.randrange(4), root.partition(":")[0]
        inner = self.trace(root, "_worker_loop")
        if kind == 0:
            caught = f"{name}: Caught {name} in DataLoader worker process 3.\nOriginal {inner}"
            return self.ends(self.trace(caught), root)
        if kind == 1:
            remote = f'multiprocessing.pool.RemoteTraceback: \n"""\n{inner}"""\n'
            return self.ends(remote + DIRECT + self.trace(root), root)
        if kind == 2:
            spawned = self.trace("torch.multiprocessing.spawn.ProcessRaisedException: ")
            return f"{spawned}\n-- Process 0 terminated with the following error:\n{inner}\n", 1, root
        checkpoint = f"torch.distributed.checkpoint.api.CheckpointException: ranks:[0]\n{inner}".replace(
            HEADER, HEADER + " (RANK 0)"
        )
        return self.ends(self.trace(checkpoint), root)

    def text(self, before: str) -> tuple[str, int, str | None]:
        text = self.rng.choice(TEXTS)
        return f"{text}\n", 1, text

    def silent(self, before: str) -> tuple[str, int, str | None]:
        if self.rng.random() < 0.5:
            return "", self.rng.randrange(2, 100), None
        return self.steps(self.rng.randrange(2, 20)), 1, None

    def signal(self, before: str) -> tuple[str, int, str | None]:
        number, name = self.rng.choice(list(SIGNALS.items()))
        return "", 128 + number, name

    def waits(self, before: str) -> tuple[str, int, str | None]:
        exception = self.rng.choice(EXCEPTIONS)
        queue = '  File "/opt/train/lib/python3.11/queue.py", line 179, in get\n    raise Empty\n_queue.Empty\n'
        waiting = f'{HEADER}\n  File "/root/work/train.py", line 12, in <module>\n    q.get(timeout=1)\n{queue}'
        return self.threads(exception) + self.rng.choice(("", waiting)), 1, exception
