"""Starts an engine's launcher in the way of its console script NAME: console.py MODULE NAME ARGV...

Imports no module of fleet.

`python -m MODULE` puts the working folder first on sys.path. Then the launcher would import files of that folder, such
as a queue.py or a checkout of torch, instead of the real modules. A console script has its own folder first on
sys.path, and its own path in argv[0]. The script itself cannot be used, as not every interpreter that has MODULE has
the script NAME next to it. This program runs in the training interpreter, with Python 3.6 syntax.

console.py --workdir-first MODULE NAME ARGV...   puts the working folder first on PYTHONPATH for the processes that the
                                                 launcher starts, but not for the launcher itself, as with
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
        sys.path[0] = scripts  # instead of the run's folder
    sys.exit(import_module(module).main())


if __name__ == "__main__":
    main()
