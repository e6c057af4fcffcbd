"""Writes a tree of pages into a Chroma server in the layout that Mirage reads, then ends.

    plainform.py PORT COLLECTION TREE

Chunks near 4,000 characters, cut at line ends, found by `page_slug` and `chunk_index`; a page is its chunks
joined by line feeds. The tree is one record of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromadb

CHUNK = 4_000  # characters
BATCH = 1_000  # rows of one call


def chunks(text: str) -> Iterator[str]:
    """Cut a page; joined by line feeds the pieces give it back."""
    lines = text.split("\n")
    piece: list[str] = []
    size = 0
    for line in lines:
        if piece and size + len(line) > CHUNK:
            yield "\n".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line) + 1
    yield "\n".join(piece)


def main(port: int, name: str, tree: Path) -> None:
    """Write all pages, then the record of the tree."""
    pages = {
        str(path.relative_to(tree)): path for path in sorted(tree.rglob("*")) if path.is_file()
    }
    rows = [
        (f"{slug}:{index}", text, {"page_slug": slug, "chunk_index": index})
        for slug, path in pages.items()
        for index, text in enumerate(chunks(path.read_text()))
    ]
    listed = json.dumps({slug: {"isPublic": True, "groups": []} for slug in pages})
    rows.append(("__path_tree__", listed, {"page_slug": "", "chunk_index": 0}))
    client = chromadb.HttpClient(host="127.0.0.1", port=port)
    collection = client.get_or_create_collection(name, embedding_function=None)
    vector: Any = [[1.0]]
    for at in range(0, len(rows), BATCH):
        ids, documents, metadatas = zip(*rows[at : at + BATCH], strict=True)
        collection.upsert(
            ids=list(ids),
            documents=list(documents),
            metadatas=list(metadatas),
            embeddings=vector * len(ids),
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
