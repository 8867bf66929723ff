"""Reads a pickle of plain values. Executes nothing in the pickle, and limits the time and memory of reading."""

import io
import pickle

from fleet.node.base.types import Any, Callable

MAX_STEPS = 4000000  # opcodes of a pickle: 2,000 calls with 100 frames each have fewer
READER: Any = pickle._Unpickler  # the standard library's reader that looks up opcodes in a table
# opcodes of plain values, as torch writes these values: none of the opcodes imports or calls anything
PLAIN = (
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.BINGET, pickle.LONG_BINGET, pickle.BINPUT, pickle.LONG_BINPUT),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.BINFLOAT, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.EMPTY_TUPLE),
    *(pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
)


class Opcodes(dict):  # type: ignore[type-arg]
    """Maps an opcode to the function that reads it. left: how many more opcodes may be read."""

    left = MAX_STEPS

    def __getitem__(self, code: int) -> "Any":
        self.left -= 1
        if self.left < 0:
            raise ValueError("it has more than %d values" % MAX_STEPS)
        return super().__getitem__(code)

    def __missing__(self, code: int) -> None:
        raise ValueError("it is no pickle of plain values: %#x" % code)


def read_text(reader: "Any") -> None:
    """Reads a text. Accepts a text that is no UTF-8, which `pickle` refuses."""
    reader.append(reader.read(int.from_bytes(reader.read(4), "little")).decode("utf-8", "replace"))


def named(code: bytes, names: slice) -> "Callable[[Any], None]":
    """Returns a function that adds items to a dictionary, and refuses a key that is no text, as its hash may take for
    ever. code: the opcode that adds the items. names: where the keys are on the reader's stack."""

    def add(reader: "Any") -> None:
        if not all(isinstance(name, str) for name in reader.stack[names]):
            raise ValueError("a name in it is no text")
        READER.dispatch[code[0]](reader)

    return add


def load_plain(data: bytes) -> "Any":
    """Returns the value of a pickle that torch wrote. Raises an exception of any class if the pickle is incomplete or
    has values that are not plain."""
    file = io.BytesIO(data)  # a read that returns too few bytes needs no check, as the last opcode is then missing
    reader = READER(file)
    reader.dispatch = Opcodes({code[0]: READER.dispatch[code[0]] for code in PLAIN})
    reader.dispatch[pickle.BINUNICODE[0]] = read_text
    reader.dispatch[pickle.SETITEM[0]] = named(pickle.SETITEM, slice(-2, -1))
    reader.dispatch[pickle.SETITEMS[0]] = named(pickle.SETITEMS, slice(None, None, 2))
    try:
        return reader.load()
    except Exception:
        if file.tell() == len(data):
            raise ValueError("it is cut short") from None
        raise
