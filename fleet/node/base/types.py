"""Names that annotations need. On a node they are nothing: to import typing costs more than most programs do."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any
    from typing import Callable as Callable
else:
    Any = Callable = None
