"""One line for a person from what a store or a collection did: what is wrong, and the way out.

The one table, used by commands that open a store themselves and by the hub when it cannot start.
"""

from __future__ import annotations

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

# The first class that fits wins. {store} and {collection} say where; the error's own text comes between.
_WAYS_OUT: tuple[tuple[type[ChromafuseError], str], ...] = (
    (StoreMissing, "check the path, or make the store with `chromafuse ingest SRC {store}`"),
    (CollectionMissing, "check --collection, or fill it with `chromafuse ingest`"),
    (NotPublished, "fill it with `chromafuse ingest`"),
    (UnknownFormat, "give another --collection"),
    (RecordDamaged, "`chromafuse verify` says more; `chromafuse ingest` publishes a new tree"),
    (StoreTimeout, "see whether the store is overloaded or locked by another process"),
    (StoreDenied, "check the token (--store-token-file), the tenant and the database"),
    (StoreUnavailable, "check that the store is running and the address is right"),
    (StoreRejected, "see the store's limits; rows_per_call in the configuration lowers a call"),
    (LockBusy, "wait until the other ingest is done"),
    (LockLost, "run it again"),
)


def explain(exc: ChromafuseError, location: StoreLocation) -> UserError:
    """Return the error to show for `exc`, which happened at `location`."""
    where = f"{location}, collection {location.collection}"
    for cls, way_out in _WAYS_OUT:
        if isinstance(exc, cls):
            return UserError(f"{where}: {exc}; {way_out.format(store=location)}")
    return UserError(f"{where}: {exc}")
