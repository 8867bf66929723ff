"""Starts an engine's launcher as its console script does: console.py MODULE NAME ARGV...

Imports no module of fleet.

`python -m MODULE` puts the working folder first on sys.path. Then the launcher would import files there, such as a
queue.py or a checkout of torch, instead of the real modules. A console script has its own folder first, and its path in
argv[0]. The script itself cannot be used: not every interpreter with MODULE has NAME next to it. This runs in the
training interpreter, with Python 3.6 syntax.

console.py --workdir-first MODULE NAME ARGV...   the processes that the launcher starts, but not the launcher itself,
                                                 have the working folder first on PYTHONPATH, as with
                                                 `export PYTHONPATH=$PWD`
"""

import os
import sys
import sysconfig
from importlib import import_module

WORKDIR_FIRST = "--workdir-first"


def main() -> None:
    argv = sys.argv[1:]
    if argv[0] == WORKDIR_FIRST:
        del argv[0]
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.getcwd() + (os.pathsep + path if path else "")
    module, name = argv[:2]
    scripts = sysconfig.get_path("scripts")
    sys.argv = [os.path.join(scripts, name)] + argv[2:]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = scripts  # it was the run's folder
    sys.exit(import_module(module).main())


if __name__ == "__main__":
    main()
