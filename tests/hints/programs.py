"""Programs that fail, each in a way of its own, with the cause and the next step that their ends deserve.

What they wrote is in recorded/NAME.txt: a line with the exit code, then the end of stderr. `python -m tests.hints.record
[NAME]` records it anew, with the interpreter that it runs in, which has torch, DeepSpeed and tqdm.
"""

from __future__ import annotations

from typing import NamedTuple


class Program(NamedTuple):
    """cause: a part of it, None where there is none to be had from the text. hint: the same of the next step. ranks:
    how many are started, the last one is recorded (its number is ranks - 1). how: the command; {py} is the script."""

    code: str
    cause: str | None
    hint: str | None = None
    ranks: int = 1
    how: str = "{python} {py}"


WAYS = """
import faulthandler, logging, os, queue, resource, signal, socket, subprocess, sys, threading, time, traceback
log = logging.getLogger("train")
logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
def say(*words): print(*words, file=sys.stderr, flush=True)
def steps(n, first=0):
    for i in range(first, first + n): say(f"step {i}: loss 0.{i}")
def fetch(what="reset by s3"): raise ConnectionError(what)
"""
TORCH = "import torch, torch.distributed as dist\nfrom datetime import timedelta\n"
GLOO = TORCH + "dist.init_process_group('gloo', timeout=timedelta(seconds=4))\nrank = dist.get_rank()\n"
LOADER = TORCH + "from torch.utils.data import DataLoader, Dataset\nclass Data(Dataset):\n    def __len__(self): return 8\n"
READ = LOADER + "    def __getitem__(self, i):\n        {}\n"
LOAD = "for batch in DataLoader(Data(), num_workers=1): steps(1)\n"
POOL = "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\nimport multiprocessing as mp\n"
HANDLED = "def load():\n    try: fetch()\n    except ConnectionError: traceback.print_exc()\nload()\n"
LOGGED = "def load():\n    try: fetch()\n    except ConnectionError: log.exception('no batch')\nload()\n"
THREAD = "def feed(): raise OSError('disk of the shards is gone')\nt = threading.Thread(target=feed)\nt.start()\nt.join()\n"
CHILD = "subprocess.run([sys.executable, '-c', 'raise RuntimeError(\"of a child\")'])\n"
FORKED = POOL + "def part(): raise RuntimeError('of a child')\np = mp.get_context('fork').Process(target=part)\np.start()\np.join()\n"
END = "def main(): raise ValueError('batch 17 is empty')\nmain()\n"
EMPTY = "ValueError: batch 17 is empty"

PROGRAMS: dict[str, Program] = {
    # an exception that nobody catches, alone and after others
    "uncaught": Program(END, EMPTY),
    "uncaught-after-steps": Program("steps(30)\n" + END, EMPTY),
    "uncaught-of-torch": Program(GLOO + END, EMPTY),
    "uncaught-then-atexit": Program("import atexit\natexit.register(say, 'metrics are flushed')\n" + END, EMPTY),
    "uncaught-then-atexit-fails": Program("import atexit\natexit.register(fetch)\n" + END, EMPTY),
    "uncaught-then-del": Program("class Loader:\n    def __del__(self): fetch()\nloader = Loader()\n" + END, EMPTY),
    "uncaught-then-thread": Program(
        "def late():\n    threading.main_thread().join()\n    fetch()\nthreading.Thread(target=late).start()\n" + END, EMPTY
    ),
    "uncaught-hook-fails": Program("sys.excepthook = lambda *a: fetch('no tracker')\n" + END, EMPTY),
    "uncaught-after-handled": Program(HANDLED + "steps(3)\n" + END, EMPTY),
    "uncaught-after-handled-at-once": Program(HANDLED + END, EMPTY),
    "uncaught-after-logged": Program(LOGGED + "steps(2)\n" + END, EMPTY),
    "uncaught-under-tqdm": Program("from tqdm import tqdm\nfor i in tqdm(range(9)):\n    if i == 5: main()\n".replace("main()", "raise ValueError('batch 17 is empty')"), EMPTY),
    "uncaught-assert": Program("def check(loss): assert loss == loss, 'loss is not a number'\ncheck(float('nan'))\n", "AssertionError: loss is not a number"),
    "uncaught-bare-assert": Program("def check(loss): assert loss == loss\ncheck(float('nan'))\n", "AssertionError"),
    "uncaught-multi-line": Program("def main(): raise ValueError('two things are wrong:\\n- lr\\n- batch')\nmain()\n", "ValueError: two things are wrong:"),
    "uncaught-recursion": Program("def f(n): return f(n + 1)\nf(0)\n", "RecursionError: maximum recursion depth exceeded"),
    "uncaught-asyncio": Program("import asyncio\nasync def main(): raise ValueError('batch 17 is empty')\nasyncio.run(main())\n", EMPTY),
    "uncaught-of-executor": Program(POOL + "with ThreadPoolExecutor() as pool: pool.submit(fetch).result()\n", "ConnectionError: reset by s3"),
    "uncaught-key": Program("def get(c): return c['input_ids']\nget({})\n", "KeyError: 'input_ids'"),
    "uncaught-module-run": Program(END, EMPTY, how="{python} -m train"),
    "uncaught-of-stdin": Program(END, EMPTY, how="sh -c '{python} - < {py}'"),
    "uncaught-with-warning": Program("import warnings\nwarnings.warn('lr is high')\n" + END, EMPTY),
    "syntax": Program("print('a'\n", "SyntaxError: '(' was never closed"),
    "retried-three-times": Program(
        "def load():\n    for n in range(3):\n        try: return fetch()\n        except ConnectionError:\n"
        "            if n == 2: raise\n            traceback.print_exc(); say(f'retry {n}')\nload()\n",
        "ConnectionError: reset by s3",
    ),
    "logged-and-raised": Program("def load():\n    try: fetch()\n    except ConnectionError: log.exception('no batch'); raise\nload()\n", "ConnectionError: reset by s3"),
    "logged-then-exit-1": Program("def main():\n    try: fetch()\n    except ConnectionError: log.exception('no batch'); sys.exit(1)\nmain()\n", "ConnectionError: reset by s3"),
    "printed-then-exit-1": Program("def main():\n    try: fetch()\n    except ConnectionError: traceback.print_exc(); sys.exit(1)\nmain()\n", "ConnectionError: reset by s3"),
    "printed-at-the-top": Program("try: fetch()\nexcept Exception: traceback.print_exc(); os._exit(1)\n", "ConnectionError: reset by s3"),
    # an end that no traceback tells of
    "handled-then-exit-3": Program(HANDLED + "os._exit(3)\n", None),
    "handled-steps-exit-3": Program("steps(9)\n" + HANDLED + "steps(30, 9)\nos._exit(3)\n", None),
    "handled-steps-exit-1": Program("steps(9)\n" + HANDLED + "steps(4, 9)\nos._exit(1)\n", None),
    "handled-words-exit-1": Program(HANDLED + "say('cache rebuilt')\nsteps(1)\nos._exit(1)\n", None),
    "logged-steps-exit-1": Program("steps(2)\n" + LOGGED + "steps(4, 2)\nos._exit(1)\n", None),
    "logged-error-exit-3": Program("log.error('no batch: ConnectionError: reset')\nos._exit(3)\n", None),
    "silent-exit-1": Program("os._exit(1)\n", None),
    "steps-exit-1": Program("steps(20)\nsys.exit(1)\n", None),
    "steps-exit-7": Program("steps(20)\nsys.exit(7)\n", None),
    "tqdm-exit-1": Program("from tqdm import tqdm\nfor i in tqdm(range(9)): pass\nsys.exit(1)\n", None),
    "warning-exit-1": Program("import warnings\nwarnings.warn('lr is high')\nsys.exit(1)\n", None),
    "exit-text": Program("sys.exit('no shards in /data/c4')\n", "no shards in /data/c4"),
    "exit-text-after-steps": Program("steps(20)\nsys.exit('validation failed on 3 of 9 sets')\n", "validation failed on 3 of 9 sets"),
    "exit-text-after-handled": Program("steps(2)\n" + HANDLED + "steps(1, 2)\nsys.exit('no shards in /data/c4')\n", "no shards in /data/c4"),
    "exit-text-after-handled-at-once": Program(HANDLED + "sys.exit('no shards in /data/c4')\n", "no shards in /data/c4"),
    "exit-text-after-logged": Program(LOGGED + "sys.exit('giving up: no batch')\n", "giving up: no batch"),
    "exit-text-after-child": Program(CHILD + "sys.exit('no shards in /data/c4')\n", "no shards in /data/c4"),
    "exit-text-of-system-exit": Program("raise SystemExit('lr must be positive')\n", "lr must be positive"),
    "exit-text-of-torch": Program(GLOO + "sys.exit('lr must be positive')\n", "lr must be positive"),
    "argparse": Program("import argparse\nargparse.ArgumentParser().parse_args(['--lrr', '1'])\n", "error: unrecognized arguments: --lrr 1", "the script does not know '--lrr 1'"),
    "argparse-choice": Program("import argparse\np = argparse.ArgumentParser()\np.add_argument('--opt', choices=['adam'])\np.parse_args(['--opt', 'sgd'])\n", "error: argument --opt: invalid choice: 'sgd'"),
    # chained and wrapped: the root, with its message
    "from": Program("def main():\n    try: fetch()\n    except ConnectionError as e: raise RuntimeError('no batch') from e\nmain()\n", "ConnectionError: reset by s3"),
    "from-none": Program("def main():\n    try: fetch()\n    except ConnectionError: raise RuntimeError('no batch') from None\nmain()\n", "RuntimeError: no batch"),
    "from-twice": Program(
        "def part():\n    try: fetch()\n    except ConnectionError as e: raise RuntimeError('no batch') from e\n"
        "def main():\n    try: part()\n    except RuntimeError as e: raise ValueError('epoch 3') from e\nmain()\n",
        "ConnectionError: reset by s3",
    ),
    "raised-while-handled": Program("def main():\n    try: fetch()\n    except ConnectionError: raise RuntimeError('no batch')\nmain()\n", "ConnectionError: reset by s3"),
    "fallback-fails": Program(
        "def slow(): return [][17]\ndef main():\n    try: import flash_attn\n    except ImportError: slow()\nmain()\n",
        "IndexError: list index out of range",
    ),
    "stop-iteration-then": Program(
        "def again(): raise OSError('disk of the shards is gone')\ndef main():\n    it = iter([])\n    try: next(it)\n"
        "    except StopIteration: again()\nmain()\n",
        "OSError: disk of the shards is gone",
    ),
    "group": Program("def main(): raise ExceptionGroup('parts failed', [ValueError('batch 17 is empty')])\nmain()\n", "batch 17 is empty"),
    "loader": Program(READ.format("open('/data/shard-3.bin')") + LOAD, "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-3.bin'", "/data/shard-3.bin is not on that node"),
    "loader-own": Program(READ.format("raise ValueError('batch 17 is empty')") + LOAD, EMPTY),
    "loader-from": Program(
        READ.format("try: fetch()\n        except ConnectionError as e: raise RuntimeError('no item') from e") + LOAD,
        "ConnectionError: reset by s3",
    ),
    "loader-key": Program(READ.format("return {}['text']") + LOAD, "KeyError: 'text'"),
    "loader-collate": Program(READ.format("return torch.zeros(i + 1)") + "for b in DataLoader(Data(), 2, num_workers=1): pass\n", "RuntimeError: stack expects each tensor to be equal size"),
    "loader-exits": Program(READ.format("os._exit(5)") + LOAD, "exited unexpectedly", "what it wrote before says why"),
    "loader-killed": Program(READ.format("os.kill(os.getpid(), 9)") + LOAD, "is killed by signal: Killed", "memory ran out"),
    "loader-bus": Program(READ.format("os.kill(os.getpid(), 7)") + LOAD, "is killed by signal: Bus error", "/dev/shm"),
    "pool": Program(POOL + "def part(n): raise ValueError('batch 17 is empty')\nwith mp.get_context('fork').Pool(1) as pool: pool.map(part, [1])\n", EMPTY),
    "executor": Program(POOL + "def part(n): raise ValueError('batch 17 is empty')\nwith ProcessPoolExecutor(1) as pool: list(pool.map(part, [1]))\n", EMPTY),
    "executor-broken": Program(POOL + "def part(n): os._exit(4)\nwith ProcessPoolExecutor(1) as pool: list(pool.map(part, [1]))\n", "BrokenProcessPool"),
    "spawn": Program(TORCH + "def part(n): raise ValueError('batch 17 is empty')\nif __name__ == '__main__': torch.multiprocessing.spawn(part, nprocs=1)\n", EMPTY),
    "spawn-dies": Program(TORCH + "def part(n): os.kill(os.getpid(), 11)\nif __name__ == '__main__': torch.multiprocessing.spawn(part, nprocs=1)\n", "process 0 terminated with signal SIGSEGV"),
    "subprocess-checked": Program("subprocess.run(['false'], check=True)\n", "subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1."),
    "torchrun": Program(
        END,
        EMPTY,
        how="{python} -m torch.distributed.run --standalone --nproc-per-node 1 {py}",
    ),
    "accelerate": Program(END, EMPTY, how="{python} -m accelerate.commands.launch --cpu --num_processes 1 {py}"),
    "checkpoint-missing": Program(
        TORCH + "import torch.distributed.checkpoint as dcp\ndcp.load({'x': torch.zeros(1)}, checkpoint_id='/data/ckpt/step_500')\n",
        "/data/ckpt/step_500",
        "a checkpoint that only another one wrote",
    ),
    # threads and children
    "thread-and-empty": Program(
        "q = queue.Queue()\ndef feed(): raise OSError('disk of the shards is gone')\nthreading.Thread(target=feed).start()\nq.get(timeout=1)\n",
        "OSError: disk of the shards is gone",
    ),
    "thread-and-exit-1": Program(THREAD + "sys.exit(1)\n", "OSError: disk of the shards is gone"),
    "thread-and-exit-3": Program(THREAD + "steps(2)\nos._exit(3)\n", None),
    "thread-and-steps": Program("steps(3)\n" + THREAD + "steps(9, 3)\nos._exit(1)\n", None),
    "thread-and-own": Program(THREAD + "steps(3)\n" + END, EMPTY),
    "thread-and-text": Program(THREAD + "steps(1)\nsys.exit('no shards in /data/c4')\n", "no shards in /data/c4"),
    "child-and-own": Program(CHILD + "steps(2)\n" + END, EMPTY),
    "child-and-exit-3": Program(CHILD + "os._exit(3)\n", None),
    "child-and-steps": Program("steps(3)\n" + CHILD + "steps(3, 3)\nos._exit(1)\n", None),
    "forked-and-own": Program(FORKED + END, EMPTY),
    "forked-and-exit-3": Program(FORKED + "os._exit(3)\n", None),
    "forked-and-steps": Program(FORKED + "steps(2)\nsys.exit(1)\n", None),
    # signals
    "usr1": Program("os.kill(os.getpid(), signal.SIGUSR1)\n", "SIGUSR1", "preemption"),
    "usr1-after-handled": Program(HANDLED + "os.kill(os.getpid(), signal.SIGUSR1)\n", "SIGUSR1", "preemption"),
    "cpu-limit": Program("resource.setrlimit(resource.RLIMIT_CPU, (1, 9))\nwhile True: pass\n", "SIGXCPU", "ulimit -t"),
    "file-limit": Program("resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\nwith open('/tmp/out.bin', 'wb') as f: f.write(bytes(9999))\n", "OSError: [Errno 27] File too large", "ulimit -f"),
    "file-limit-native": Program("signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\nopen('/tmp/out.bin', 'wb').write(bytes(9999))\n", "SIGXFSZ", "ulimit -f"),
    "killed": Program("steps(2)\nos.kill(os.getpid(), 9)\n", None, "killed from outside"),
    "killed-after-handled": Program(HANDLED + "steps(2)\nos.kill(os.getpid(), 9)\n", None, "killed from outside"),
    "hangup": Program("os.kill(os.getpid(), signal.SIGHUP)\n", "SIGHUP"),
    "alarm": Program("signal.alarm(1)\ntime.sleep(9)\n", "SIGALRM"),
    "interrupted": Program("os.kill(os.getpid(), 2)\ntime.sleep(1)\n", "KeyboardInterrupt"),
    "segfault": Program("import ctypes\nctypes.string_at(0)\n", "SIGSEGV", "PYTHONFAULTHANDLER=1"),
    "segfault-armed": Program("import ctypes\nfaulthandler.enable()\nctypes.string_at(0)\n", "Fatal Python error: Segmentation fault"),
    "segfault-after-handled": Program(HANDLED + "import ctypes\nsteps(1)\nctypes.string_at(0)\n", "SIGSEGV", "PYTHONFAULTHANDLER=1"),
    "abort": Program("os.abort()\n", "SIGABRT"),
    # limits, full memory, ports, files, names
    "memory-limit": Program("resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nbytearray(4 << 30)\n", "MemoryError", "ulimit -v"),
    "memory-limit-torch": Program(TORCH + "torch.empty(1 << 50)\n", "DefaultCPUAllocator: can't allocate memory", "ulimit -v"),
    "memory-limit-numpy": Program("import numpy\nnumpy.zeros(1 << 46)\n", "Unable to allocate", "ulimit -v"),
    "files-limit": Program("resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))\n[open('/dev/null') for _ in range(20)]\n", "OSError: [Errno 24] Too many open files", "nofile"),
    "server-port": Program(
        "held = socket.create_server(('127.0.0.1', 45671))\nfrom http.server import HTTPServer\nHTTPServer(('127.0.0.1', 45671), None)\n",
        "OSError: [Errno 98] Address already in use",
        "the script's own",
    ),
    "server-port-asyncio": Program(
        "held = socket.create_server(('127.0.0.1', 45671))\nimport asyncio\nasync def main(): await asyncio.start_server(print, '127.0.0.1', 45671)\nasyncio.run(main())\n",
        "error while attempting to bind on address ('127.0.0.1', 45671)",
        "fleet kill-port 45671",
    ),
    "store-port": Program(
        TORCH + "held = socket.create_server(('', 45671))\ndist.TCPStore('127.0.0.1', 45671, is_master=True)\n",
        "EADDRINUSE",
        "the script's own",
    ),
    "master-port": Program(
        TORCH + "held = socket.create_server(('', int(os.environ['MASTER_PORT'])))\ndist.init_process_group('gloo')\n",
        "EADDRINUSE",
        "--master-port auto",
    ),
    "no-cuda": Program(TORCH + "torch.zeros(1).cuda()\n", "AssertionError: Torch not compiled with CUDA enabled", "without CUDA"),
    "no-nccl": Program(TORCH + "dist.init_process_group('nccl')\n", "NCCL", "without NCCL"),
    "no-cudart": Program("import ctypes\nctypes.CDLL('libcudart.so.12')\n", "OSError: libcudart.so.12: cannot open shared object file", "CUDA 12"),
    "no-name": Program("socket.create_connection(('data.internal.invalid', 80))\n", "socket.gaierror: [Errno -", "name"),
    "no-name-of-master": Program(
        TORCH + "os.environ.update(MASTER_ADDR='gpu99.invalid', RANK='1', WORLD_SIZE='2')\ndist.init_process_group('gloo', timeout=timedelta(seconds=2))\n",
        "gpu99.invalid",
        "gpu99.invalid",
    ),
    "no-json": Program("import json\njson.load(open('conf/model.json'))\n", "No such file or directory: 'conf/model.json'", "conf/model.json is not there"),
    "no-yaml": Program("import yaml\nyaml.safe_load(open('./config/train.yaml'))\n", "No such file or directory: './config/train.yaml'", "./config/train.yaml is not there"),
    "no-deepspeed-json": Program("import deepspeed, torch\ndeepspeed.initialize(model=torch.nn.Linear(1, 1), config='./deepspeed.json')\n", "./deepspeed.json", "./deepspeed.json is not there"),
    "no-module": Program("import nosuchpackage\n", "ModuleNotFoundError: No module named 'nosuchpackage'", "nosuchpackage is missing there"),
    "no-file": Program("open('/data/tokens.bin')\n", "FileNotFoundError: [Errno 2] No such file or directory: '/data/tokens.bin'", "/data/tokens.bin is not on that node"),
    "cut-checkpoint": Program(
        TORCH + "torch.save({'w': torch.zeros(9999)}, 'x.pt')\nos.truncate('x.pt', 9000)\ntorch.load('x.pt')\n",
        "PytorchStreamReader failed",
        "cut short",
    ),
    # several ranks
    "peer-gone": Program(GLOO + "if rank == 0: os._exit(3)\ndist.all_reduce(torch.ones(1))\n", "Connection closed by peer", "another rank went away", ranks=2),
    "peer-late": Program(GLOO + "if rank == 0: time.sleep(9)\ndist.all_reduce(torch.ones(1))\n", "Timed out waiting", "a collective timed out", ranks=2),
    "peer-not-at-barrier": Program(
        GLOO + "if rank == 0: time.sleep(6)\ndist.monitored_barrier(timeout=timedelta(seconds=2))\n", None, None, ranks=2
    ),
    "peer-at-barrier-late": Program(
        GLOO.replace("rank = dist.get_rank()", "rank = 1 - dist.get_rank()") + "dist.monitored_barrier(timeout=timedelta(seconds=2)) if rank == 1 else time.sleep(5)\n",
        None,
        None,
        ranks=2,
    ),
    "shapes-differ": Program(GLOO + "dist.all_reduce(torch.ones(5 + 4000 * rank))\n", None, None, ranks=2),
    "torch-shapes": Program(TORCH + "torch.ones(2, 3) @ torch.ones(2, 3)\n", "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    "torch-dtype": Program(TORCH + "torch.nn.Linear(2, 2)(torch.ones(1, 2).double())\n", "RuntimeError: mat1 and mat2 must have the same dtype"),
    # shells
    "shell-no-command": Program("", "nosuchtool: ", how="sh -c nosuchtool"),
    "shell-cp": Program("", "cp: cannot stat 'nothing'", how="sh -e -c 'cp nothing x; echo done'"),
    "shell-of-python": Program(END, None, how="sh -c '{python} {py} || exit 7'"),
    "shell-exec": Program(END, EMPTY, how="sh -c 'exec {python} {py}'"),
    "shell-last": Program(END, EMPTY, how="sh -c 'echo begin >&2; {python} {py}'"),
    "no-script": Program("", "can't open file", "fleet launch --sync", how="{python} nothing.py"),
}
