"""Reads a pickle of plain values. Executes nothing in it, and bounds the time and memory."""

import struct

from fleet.node.base.types import Any

MAX_STEPS = 4000000  # opcodes of a pickle: 2,000 calls with 100 frames each have fewer


class Plain:
    """Reads a pickle of plain values, as torch writes them, and refuses all others. Time and memory are bounded by the
    length of the pickle and MAX_STEPS."""

    NUMBERS = {
        0x4A: struct.Struct("<i"),
        0x4B: struct.Struct("<B"),
        0x4D: struct.Struct("<H"),
        0x47: struct.Struct(">d"),
    }
    CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
    COUNTED = {0x85: 1, 0x86: 2, 0x87: 3}  # tuples

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> "Any":
        """Returns the value. Raises an exception of any class if the pickle is incomplete or has other values."""
        stack = self._stack
        for _ in range(MAX_STEPS):
            (code,) = self._part(1)
            if code in (0x68, 0x6A):  # BINGET, LONG_BINGET
                stack.append(self._memo[self._whole(1 if code == 0x68 else 4)])
            elif code in (0x71, 0x72):  # BINPUT, LONG_BINPUT
                self._memo[self._whole(1 if code == 0x71 else 4)] = stack[-1]
            elif code in self.NUMBERS:
                number = self.NUMBERS[code]
                stack.append(number.unpack(self._part(number.size))[0])
            elif code in self.CONSTANTS:
                stack.append(self.CONSTANTS[code])
            elif code == 0x58:  # BINUNICODE
                stack.append(self._part(self._whole(4)).decode("utf-8", "replace"))
            elif code == 0x8A:  # LONG1
                stack.append(int.from_bytes(self._part(self._whole(1)), "little", signed=True))
            elif code in (0x5D, 0x7D, 0x29):  # EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE
                stack.append([] if code == 0x5D else {} if code == 0x7D else ())
            elif code == 0x28:  # MARK
                self._marks.append(len(stack))
            elif code in (0x65, 0x61):  # APPENDS, APPEND
                values = self._taken(self._marks.pop() if code == 0x65 else len(stack) - 1)
                list.extend(stack[-1], values)
            elif code in (0x75, 0x73):  # SETITEMS, SETITEM
                values = self._taken(self._marks.pop() if code == 0x75 else len(stack) - 2)
                if not all(isinstance(name, str) for name in values[::2]):
                    raise ValueError("a name in it is no text")
                dict.update(stack[-1], zip(values[::2], values[1::2]))
            elif code in self.COUNTED or code == 0x74:  # TUPLE1 to 3, TUPLE
                stack.append(tuple(self._taken(self._marks.pop() if code == 0x74 else len(stack) - self.COUNTED[code])))
            elif code == 0x80:  # PROTO
                self._part(1)
            elif code == 0x2E:  # STOP
                return stack.pop()
            else:
                raise ValueError("it is no pickle of plain values: %#x" % code)
        raise ValueError("it has more than %d values" % MAX_STEPS)

    def _part(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise ValueError("it is cut short")
        self._at += size
        return part

    def _whole(self, size: int) -> int:
        return int.from_bytes(self._part(size), "little")

    def _taken(self, first: int) -> "list[Any]":
        """Removes the values from index `first` on from the stack, and returns them."""
        if first < 0:
            raise ValueError("it lacks values")
        values = self._stack[first:]
        del self._stack[first:]
        return values
