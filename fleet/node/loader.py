"""Starts a node's Python: has an importer for the modules that the head sends, and runs the program among them.

transport/program.py sends this text with a line after it that calls run(), then the modules' own texts. It never looks
into a folder `fleet` that is installed on the node."""

import marshal
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
from posix import _exit
from zlib import decompress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader
    from types import CodeType, ModuleType
    from typing import BinaryIO
else:
    Loader = object


class Importer(Loader):
    """Loads modules from their source texts, {name: bytes}. A module with an empty text is a package. Tracebacks show
    source lines. codes: compiled code of the texts, if it is known."""

    def __init__(self, texts: "dict[str, bytes]", codes: "dict[str, CodeType]") -> None:
        self.texts, self.codes = texts, codes

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
        code = self.codes.get(name) or compile(self.texts[name], name.replace(".", "/") + ".py", "exec", 0, True)
        exec(code, module.__dict__)

    def get_source(self, name: str) -> str:
        return self.texts[name].decode()


def run(stream: "BinaryIO", programs: "list[str]", size: int) -> None:
    """Reads the modules, `size` bytes, and runs main() of each program in turn. Then it ends this process at once, even
    if a thread is blocked on stdin. The modules come with compiled code, which a Python of the head's version can use:
    compiling takes half of the time of a short program."""
    status = 1
    try:
        texts, kind, codes = marshal.loads(decompress(stream.read(size)))
        alike = kind == (sys.implementation.cache_tag, MAGIC_NUMBER)
        sys.meta_path.insert(0, Importer(texts, marshal.loads(codes) if alike else {}))
        for program in programs:
            __import__(program)
            sys.modules[program].main()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        _exit(status)
