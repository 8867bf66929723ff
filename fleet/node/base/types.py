"""Has the names that annotations need, also those of messages. On a node they are None: the import of typing takes
longer than most programs, and the messages' module is on the head only."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any
    from typing import BinaryIO as BinaryIO
    from typing import Callable as Callable
    from typing import Collection as Collection
    from typing import Iterable as Iterable
    from typing import Iterator as Iterator
    from typing import Mapping as Mapping
    from typing import Sequence as Sequence

    from fleet.protocol.messages import build as build
    from fleet.protocol.messages import chain as chain
    from fleet.protocol.messages import code as code
    from fleet.protocol.messages import facts as facts
    from fleet.protocol.messages import give as give
    from fleet.protocol.messages import images as images
    from fleet.protocol.messages import run as run
    from fleet.protocol.messages import run_specs as run_specs
    from fleet.protocol.messages import stacks as stacks
    from fleet.protocol.messages import values as values
    from fleet.protocol.messages import wheels as wheels

    Step = tuple[str, Callable[[], dict[str, Any]]]  # for gather.py: a name, the function that returns its facts
else:
    Any = BinaryIO = Callable = Collection = Iterable = Iterator = Mapping = Sequence = Step = None
    build = chain = code = facts = give = images = run = run_specs = stacks = values = wheels = None
