#!/usr/bin/python3 -S
# chromafuse shim: for GNU grep's own tests, on local files as if they were pages of a mount.
"""Filters every file of every command line that can be filtered, by looking into it.

    PYTHONPATH=CHECKOUT WAYS=FILE src/grep …

The real shim with another place to ask. Each run appends to WAYS which way it took, and why.
"""

from __future__ import annotations

import os
import sys

from chromafuse.search import gnu, query, shim
from chromafuse.search.needs import Needs
from chromafuse.search.plan import Plain, Plan


class LocalFiles(shim.Mounts):
    """Says of any directory what is below it."""

    def serves(self, directory: bytes) -> bool:
        return os.path.isdir(directory)

    def ask(self, directory: bytes, question: bytes, timeout: bytes) -> bytes:
        asked = query.parse_question(question)
        plan = gnu.plan(asked.request)
        return query.encode_answer(answer(plan, directory) if isinstance(plan, Plan) else plan)


class Forced(shim.Search):
    """A search that is rewritten also where no file is left out."""

    def count(self, answer: shim.Answer, names: list[bytes]) -> None:
        self.pages, self.chosen, self.source = len(answer.operands), len(names), answer.source


def answer(plan: Plan, directory: bytes) -> query.Filtered | Plain:
    """Return what can match, by the contents of the files."""
    selection = plan.selection
    kept = tuple(
        (selection is None or selection.admits_operand(path)) and can_match(plan.needs, path)
        for path in plan.operands
    )
    found: list[bytes] = []
    if plan.recursive and (directory in plan.operands or not plan.operands):
        listed = files_below(directory)
        if listed is None:
            return Plain("links and devices")
        found = [
            path
            for path in listed
            if (selection is None or selection.admits(path))
            and can_match(plan.needs, os.path.join(directory, path))
        ]
    return query.Filtered(plan, kept, len(found), "local", tuple(found))


def files_below(directory: bytes, prefix: bytes = b"") -> list[bytes] | None:
    """Return the files in the order in which grep comes to them; None where there is anything special."""
    found: list[bytes] = []
    for entry in os.scandir(os.path.join(directory, prefix)):
        path = os.path.join(prefix, entry.name)
        if entry.is_dir(follow_symlinks=False):
            below = files_below(directory, path)
            if below is None:
                return None
            found += below
        elif entry.is_file(follow_symlinks=False):
            found.append(path)
        else:
            return None
    return found


def can_match(needs: Needs, path: bytes) -> bool:
    """Say so by the content of a file; of anything else, and of one that cannot be read, say yes."""
    from tests.support.searching import (
        is_candidate,
    )  # takes its time, and most runs do not come here

    try:
        if not os.path.isfile(path):
            return True
        with open(path, "rb") as file:
            return is_candidate(needs, file.read())
    except OSError:
        return True


def note(why: str) -> None:
    """Keep which way was taken."""
    with open(os.environ["WAYS"], "a", encoding="utf-8", errors="surrogateescape") as ways:
        ways.write(f"{why}\n")


if __name__ == "__main__":
    shim.SHELF = 1
    shim.Search = Forced  # type: ignore[misc]
    shim.report = note
    words = [os.fsencode(word) for word in sys.argv[1:]]
    shim.run(os.path.basename(sys.argv[0]), words, LocalFiles(), own=sys.argv[0], explain=True)
