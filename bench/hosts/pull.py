"""The plain script: every page out of a Chroma collection, by lists of ids, with Chroma's own client.

    pull.py STORE COLLECTION        STORE: a directory, or http://host:port

It is what a first walk is held against: nothing that asks Chroma for every page can be much faster. `{"do":
"pull", "batch": N}` pulls all rows, N ids a call, and joins the pages. The list of ids is made beforehand, and
the client opened, as a mount knows its tree before the first read.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from naive import LIST, open_collection


def ids_of(collection: Any) -> list[str]:
    """Return the ids of all chunks, page by page."""
    keys = []
    for offset in range(0, collection.count(), LIST):
        rows = collection.get(include=["metadatas"], limit=LIST, offset=offset)
        keys += [
            (row["page"], row["chunk_index"], id)
            for id, row in zip(rows["ids"], rows["metadatas"], strict=True)
            if row and "page" in row
        ]
    return [id for *_, id in sorted(keys)]


def pull(collection: Any, ids: list[str], batch: int) -> dict[str, str]:
    """Return the text of every page."""
    chunks: dict[str, dict[int, str]] = {}
    for at in range(0, len(ids), batch):
        rows = collection.get(ids=ids[at : at + batch])
        for row, text in zip(rows["metadatas"], rows["documents"], strict=True):
            chunks.setdefault(row["page"], {})[row["chunk_index"]] = text
    return {page: "".join(parts[k] for k in sorted(parts)) for page, parts in chunks.items()}


def main() -> None:
    """Answer until stdin ends."""
    collection = open_collection(*sys.argv[1:3])
    ids = ids_of(collection)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.perf_counter()
        pages = pull(collection, ids, asked["batch"])
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "lines": len(pages)}), flush=True)


if __name__ == "__main__":
    main()
