"""Where a node's python begins: an importer for the modules that the head sends, and the program among them.

transport/program.py sends this text with a line behind it that calls run(), then the modules' own texts. A folder
`fleet` that is installed on the node is never looked into.
"""

import sys
from _frozen_importlib import ModuleSpec
from posix import _exit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader
    from types import ModuleType
    from typing import BinaryIO
else:
    Loader = object


class Importer(Loader):
    """Loads modules from their texts, {name: bytes}; one without any is a package. Tracebacks show their lines."""

    def __init__(self, texts: "dict[str, bytes]") -> None:
        self.texts = texts

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if name in self.texts:
            return ModuleSpec(name, self, is_package=not self.texts[name])
        if name.startswith("fleet."):
            raise ImportError("%s was not sent" % name)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        pass  # python makes it

    def exec_module(self, module: "ModuleType") -> None:
        name = module.__name__
        exec(compile(self.texts[name], name.replace(".", "/") + ".py", "exec", 0, True), module.__dict__)

    def get_source(self, name: str) -> str:
        return self.texts[name].decode()


def run(stream: "BinaryIO", program: str, sizes: "list[tuple[str, int]]") -> None:
    """Take in the modules, [(name, bytes of its text)], and run the main() of one. It ends this process: a reader that
    is blocked on stdin must not hold that up."""
    status = 1
    try:
        sys.meta_path.insert(0, Importer({name: stream.read(size) for name, size in sizes}))
        __import__(program)
        sys.modules[program].main()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        _exit(status)
