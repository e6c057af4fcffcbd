"""Every exception the program raises on purpose, and the one table from them to errno.

Two families. `UserError` is a person's mistake or a fault of the world that a person can mend: the
command line prints its one line and exits with its code, without a traceback. `ChromafuseError` is what
the core raises: a command turns it into a `UserError` where it knows the way out, and a FUSE handler
turns it into an errno through `errno_of`. Anything else that escapes is a bug: a traceback, and EIO.
"""

from __future__ import annotations

import errno


class UserError(Exception):
    """One line for the person at the terminal that says what is wrong and the way out; exit code 1."""

    exit_code = 1


class UsageError(UserError):
    """The command line, the configuration or the ACL file is wrong, whatever the world is like; exit code 2."""

    exit_code = 2


class ChromafuseError(Exception):
    """Base of what the core raises."""


class StoreError(ChromafuseError):
    """The collection could not be read or written."""


class StoreUnavailable(StoreError):
    """The store refused the connection, dropped it or crashed, also after the retries."""


class StoreTimeout(StoreError):
    """The store gave no answer within the deadline."""


class StoreDenied(StoreError):
    """The store refused the credentials, or has no such tenant or database."""


class StoreRejected(StoreError):
    """The store understood the call and will not do it: a quota, a limit, a malformed request."""


class StoreMissing(StoreError):
    """There is no store at this place (embedded: no `chroma.sqlite3`)."""


class CollectionMissing(StoreError):
    """The store has no collection of this name."""


class CacheError(ChromafuseError):
    """The shared cache gave no answer that can be used. No reader sees it: pages then come from the store."""


class RecordDamaged(ChromafuseError):
    """A stored record is missing, malformed, or does not have the digest that was promised."""


class UnknownFormat(RecordDamaged):
    """The collection says that it has a format this program does not know, or none at all."""


class NotPublished(RecordDamaged):
    """The collection has no root record: nothing was ingested into it."""


class PageGone(ChromafuseError):
    """The bytes of this page version were replaced and collected: a snapshot older than the grace time."""


class StaleInode(ChromafuseError):
    """A request named an inode, or a generation, that this view does not have."""


class LockLost(ChromafuseError):
    """Another writer took over while this one was publishing; nothing was made visible by this one."""


class LockBusy(ChromafuseError):
    """Another writer held the lock for as long as this one was ready to wait."""


class ProtocolError(ChromafuseError):
    """The other side of a hub socket sent bytes that are not a frame of this protocol."""


# The most specific class wins; a class that is not listed is EIO.
_ERRNO: dict[type[BaseException], int] = {
    StoreTimeout: errno.ETIMEDOUT,
    PageGone: errno.ESTALE,
    StaleInode: errno.ESTALE,
    ChromafuseError: errno.EIO,
}


def errno_of(exc: BaseException) -> int:
    """Return the errno that a reader of the mount gets for `exc`: ETIMEDOUT, ESTALE or EIO."""
    for cls in type(exc).__mro__:
        if cls in _ERRNO:
            return _ERRNO[cls]
    return errno.EIO
