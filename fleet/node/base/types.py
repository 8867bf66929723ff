"""Names that annotations need. On a node they are nothing: to import typing costs more than most programs do."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any
    from typing import Callable as Callable
    from typing import Iterable as Iterable
    from typing import Iterator as Iterator
    from typing import Mapping as Mapping
    from typing import Sequence as Sequence

    Step = tuple[str, Callable[[], dict[str, Any]]]  # of gather(): what it is called, what it tells
else:
    Any = Callable = Iterable = Iterator = Mapping = Sequence = Step = None
