"""The class that a tutorial would write: a Chroma collection as files, over `collection.get`.

    naive.py STORE COLLECTION       STORE: a directory, or http://host:port

`{"do": "find"}`, `{"do": "grep", "word": W}` reads every page and searches it, `{"do": "contains", "word": W}`
lets Chroma find the chunks. Nothing is cached, as there is nothing in such a class to do it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

import chromadb

LIST = 10_000  # rows of one call; over 32,766 is an error


class ChromaFiles:
    """The pages of a collection, as files."""

    def __init__(self, collection: Any) -> None:
        self.collection = collection

    def list(self) -> list[str]:
        """Return the paths of all pages."""
        paths: set[str] = set()
        for offset in range(0, self.collection.count(), LIST):
            rows = self.collection.get(include=["metadatas"], limit=LIST, offset=offset)
            paths |= {row["page"] for row in rows["metadatas"] if row and "page" in row}
        return sorted(paths)

    def cat(self, path: str) -> str:
        """Return the text of a page."""
        rows = self.collection.get(where={"page": path}, include=["documents", "metadatas"])
        order = {
            row["chunk_index"]: text
            for row, text in zip(rows["metadatas"], rows["documents"], strict=True)
        }
        return "".join(order[index] for index in sorted(order))

    def grep(self, word: str) -> Iterator[str]:
        """Yield `path:line` for each line that has the word."""
        for path in self.list():
            for line in self.cat(path).split("\n"):
                if word in line:
                    yield f"{path}:{line}"

    def contains(self, word: str) -> Iterator[str]:
        """Yield the same, but let Chroma find the chunks first."""
        rows = self.collection.get(
            where_document={"$contains": word}, include=["documents", "metadatas"]
        )
        for row, text in zip(rows["metadatas"], rows["documents"], strict=True):
            for line in text.split("\n"):
                if word in line and row and "page" in row:
                    yield f"{row['page']}:{line}"


def open_collection(store: str, name: str) -> Any:
    """Open a collection with Chroma's own client."""
    if store.startswith("http"):
        where = urlsplit(store)
        client = chromadb.HttpClient(host=where.hostname or "", port=where.port or 8000)
    else:
        client = chromadb.PersistentClient(path=store)
    return client.get_collection(name, embedding_function=None)


def main() -> None:
    """Answer until stdin ends."""
    files = ChromaFiles(open_collection(*sys.argv[1:3]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.perf_counter()
        if asked["do"] == "find":
            found = files.list()
            found += {str(folder) for path in found for folder in PurePath(path).parents}
        else:
            found = list(getattr(files, asked["do"])(asked["word"]))
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "lines": len(found)}), flush=True)


if __name__ == "__main__":
    main()
