"""One guard around every FUSE handler, so that nothing a handler raises can take the mount down.

pyfuse3 ends the whole mount on any exception but FUSEError. `guarded` wraps all handlers that pyfuse3 knows,
the inherited ones too: FUSEError passes; what the core raises on purpose becomes its errno; anything else is
a bug, which is EIO for the caller, a traceback in the log (once for each place) and a number in the counters.
Cancellation is no Exception and passes.

Concurrency: handlers run on the trio thread; the counters are changed there only.
"""

from __future__ import annotations

import errno
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pyfuse3

from ..errors import ChromafuseError, errno_of

log = logging.getLogger(__name__)

HANDLERS = tuple(
    name
    for name, value in vars(pyfuse3.Operations).items()
    if inspect.iscoroutinefunction(value) and not name.startswith("_")
)
# No request waits for its answer, so there is nobody to tell, and even FUSEError would end the mount.
_WITHOUT_REPLY = frozenset({"forget"})


@dataclass(slots=True)
class Counters:
    """How many requests reached the view, by handler, and how many of them ended in a bug."""

    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HANDLERS, 0))
    bugs: int = 0
    _seen: set[tuple[str, str, int]] = field(default_factory=set)

    def count_bug(self, handler: str, exc: Exception) -> bool:
        """Count an unexpected exception; say whether it is the first one from its place."""
        self.bugs += 1
        place = (handler, type(exc).__name__, _line_of(exc))
        first = place not in self._seen
        self._seen.add(place)
        return first


class Counting(Protocol):
    """What the guard needs of the class it wraps."""

    counters: Counters


Handler = Callable[..., Awaitable[Any]]
T = TypeVar("T", bound=type[Any])


def guarded(operations: T) -> T:
    """Wrap every handler of a subclass of pyfuse3.Operations, in place."""
    for name in HANDLERS:
        setattr(operations, name, _guard(name, getattr(operations, name)))
    return operations


def _guard(name: str, handler: Handler) -> Handler:
    @functools.wraps(handler)
    async def guarded_handler(self: Counting, *args: Any) -> Any:
        self.counters.requests[name] += 1
        try:
            return await handler(self, *args)
        except pyfuse3.FUSEError:
            if name in _WITHOUT_REPLY:
                return None
            raise
        except ChromafuseError as exc:
            code = errno_of(exc)
        except Exception as exc:
            if self.counters.count_bug(name, exc):
                log.exception("a bug in %s; callers get EIO", name)
            code = errno.EIO
        if name in _WITHOUT_REPLY:
            return None
        raise pyfuse3.FUSEError(code) from None

    return guarded_handler


def _line_of(exc: Exception) -> int:
    trace, line = exc.__traceback__, 0
    while trace is not None:
        line = trace.tb_lineno
        trace = trace.tb_next
    return line
