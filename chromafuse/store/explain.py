"""One line for a person from what a store or a collection did: what is wrong, and the way out.

The one table, used by commands that open a store themselves and by the hub when it cannot start.
"""

from __future__ import annotations

import shlex

from ..errors import (
    ChromafuseError,
    CollectionMissing,
    LockBusy,
    LockLost,
    NotPublished,
    RecordDamaged,
    StoreDenied,
    StoreMissing,
    StoreRejected,
    StoreTimeout,
    StoreUnavailable,
    UnknownFormat,
    UserError,
)
from .location import StoreLocation

# The first class that fits wins. Two ways out depend on what kind of store it is.
_WAYS_OUT: tuple[tuple[type[ChromafuseError], str], ...] = (
    (StoreMissing, "check the path, or make the store with `chromafuse ingest SRC {store}`"),
    (CollectionMissing, "check --collection, or fill it with `chromafuse ingest`"),
    (NotPublished, "fill it with `chromafuse ingest`"),
    (UnknownFormat, "give another --collection"),
    (RecordDamaged, "publish a new tree: `chromafuse ingest SRC {store} --max-delete 100%`"),
    (StoreTimeout, "see whether the store is overloaded or locked by another process"),
    (StoreDenied, "{denied}"),
    (StoreUnavailable, "{unavailable}"),
    (StoreRejected, "see the store's limits; rows_per_call in the configuration lowers a call"),
    (LockBusy, "wait until the other ingest is done"),
    (LockLost, "run it again"),
)


_BY_KIND = {
    "embedded": {
        "denied": "check who owns the files, and their modes",
        "unavailable": "see the log, and whether the disk is full",
    },
    "server": {
        "denied": "check the token (--store-token-file), the tenant and the database",
        "unavailable": "check that the store is running and the address is right",
    },
}


def explain(exc: ChromafuseError, location: StoreLocation) -> UserError:
    """Return the error to show for `exc`, which happened at `location`."""
    what = str(exc)
    for label in (str(location), location.url if location.kind == "server" else location.path):
        what = what.removeprefix(f"{label}: ")  # said already
    store = shlex.quote(str(location))
    line = f"{location}, collection {location.collection}: {what}"
    for cls, way_out in _WAYS_OUT:
        if isinstance(exc, cls):
            return UserError(f"{line}; {way_out.format(store=store, **_BY_KIND[location.kind])}")
    return UserError(line)
