"""Starts an engine's launcher as its console script does: console.py MODULE NAME ARGV...

Imports no module of fleet.

`python -m MODULE` puts the working folder first on sys.path. What lies there, be it a queue.py or a checkout of torch,
takes the place of what the launcher imports. A console script has its own folder there, and its path in argv[0]; not
every interpreter that has MODULE has NAME next to it. Runs in the training interpreter; Python 3.6 syntax.

console.py --workdir-first MODULE NAME ARGV...   what the launcher starts, and not the launcher itself, has the working
                                                 folder first on its PYTHONPATH, as `export PYTHONPATH=$PWD` does
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
