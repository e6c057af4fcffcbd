"""The trigram index: a file that says which page versions can hold given literals, and never misses one.

    <key>.<sha256>.index   SQLite. `pages`: one row a page version, with its traits; `text`: a trigram table of
                           FTS5 over folded text (search/needs.py), which keeps neither the text nor positions.

A sealed file never changes again and has its digest for a name, so nothing about it has to be trusted: SQLite
itself does not notice a flipped bit in a list of pages, and that would be a match that is never found.
Pages are added to a copy, which is then sealed (`Writer`). Rows are content: a version is a digest of path and
bytes, so a row is right for ever, whichever tree is published. Nothing is removed; once three rows in ten are
of no use, a new file is begun.

Text with NUL ends there for SQLite, and bytes that are no UTF-8 or begin with a byte order mark are read by
every tool in its own way: such pages are not indexed, and are always candidates.

Concurrency: blocking; for worker threads and for the process that builds. An `Index` serves one search at a
time, and others wait. One `Writer` a key at a time: whoever holds the lock (indexer.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from array import array
from collections.abc import Collection, Iterable, Iterator
from enum import IntFlag
from pathlib import Path

from ..search.needs import Need, Needs, fold

FORMAT = 1  # of the file; another number is another file
DEAD = 0.3  # share of rows of no use from which a file is not added to any more
# Of text between two seals, at least; a killed build loses no more than that or a third.
SEAL_BYTES = 16 << 20
KEPT = 8  # files of all collections; the least recently used go first
TERMS = 4_000  # trigrams of one query; SQLite takes some 6 us for one that occurs nowhere
LITERAL_TERMS = 24  # trigrams looked at of one literal, spread over it
_SUFFIX = ".index"
_UNFINISHED = ".work"
_APPLICATION = 0x63667578  # "cfux"
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SCHEMA = f"""
    PRAGMA application_id = {_APPLICATION};
    PRAGMA user_version = {FORMAT};
    CREATE TABLE pages (id INTEGER PRIMARY KEY, version BLOB NOT NULL UNIQUE, traits INTEGER NOT NULL);
    CREATE VIRTUAL TABLE text USING fts5 (
        page, tokenize = 'trigram case_sensitive 1', detail = 'none', content = '', columnsize = 0);
"""


class Trait(IntFlag):
    """What makes a page a candidate for everything."""

    NUL = 1
    MARK = 2  # begins with a byte order mark
    ENCODING = 4  # not UTF-8


class IndexDamaged(Exception):
    """A file is not what its name promises, or SQLite cannot read it."""


def traits_of(page: bytes) -> Trait:
    """Return the traits of a page's bytes."""
    traits = Trait(0)
    if b"\0" in page:
        traits |= Trait.NUL
    if page.startswith(_MARKS):
        traits |= Trait.MARK
    try:
        page.decode()
    except UnicodeDecodeError:
        traits |= Trait.ENCODING
    return traits


# -- asking ------------------------------------------------------------------------------------------------


def match_expression(needs: tuple[Need, ...]) -> str | None:
    """Return what FTS5 is to match for `needs`, which are not empty; None where trigrams say nothing.

    A page that fulfils the needs matches; with `detail=none` a literal is the AND of its trigrams, in any order.
    """
    patterns = []
    for need in needs:
        clauses = [_any_of(clause, need.fold) for clause in need.clauses]
        known = [clause for clause in clauses if clause is not None]
        if not known:
            return None
        patterns.append(f"({' AND '.join(known)})")
    expression = " OR ".join(dict.fromkeys(patterns))
    return None if expression.count('"') // 2 > TERMS else expression


def _any_of(clause: Collection[str], folded: bool) -> str | None:
    if folded and not all(map(str.isascii, clause)):
        return None  # letters beyond ASCII fold in each tool's own way
    literals = [_all_trigrams(literal) for literal in sorted(clause)]
    known = [literal for literal in literals if literal is not None]
    return f"({' OR '.join(known)})" if known and len(known) == len(literals) else None


def _all_trigrams(literal: str) -> str | None:
    text = fold(literal)
    found = dict.fromkeys(text[at : at + 3] for at in range(len(text) - 2))
    terms = [trigram for trigram in found if _is_indexed(trigram)]
    step = -(-len(terms) // LITERAL_TERMS) or 1
    quoted = (trigram.replace('"', '""') for trigram in terms[::step])
    return " AND ".join(f'"{trigram}"' for trigram in quoted) or None


def _is_indexed(trigram: str) -> bool:
    return not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in trigram)


class Index:
    """A sealed file, open for searching."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.Lock()
        # Rows of pages that are candidates for everything. Not all are of use to a tree, but they are few.
        self.always = self._with_traits(~Trait(0))
        self.nul = self._with_traits(Trait.NUL)  # rows of pages that hold a NUL

    @classmethod
    def open(cls, path: Path) -> Index:
        """Open a sealed file whose digest is right. Raises IndexDamaged, OSError."""
        if _digest(path) != path.name.removesuffix(_SUFFIX).rpartition(".")[2]:
            raise IndexDamaged(f"{path} does not have the digest that it is named by")
        with contextlib.ExitStack() as undo, _damage_named(path):
            connection = _connect(path, "mode=ro&immutable=1", check_same_thread=False)
            undo.callback(connection.close)
            found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _IDENTITY]
            if found != list(_IDENTITY.values()):
                raise IndexDamaged(f"{path} has another format")
            index = cls(path, connection)
            undo.pop_all()
            return index
        raise AssertionError("unreachable: the block returns or raises")

    def search(self, needs: Needs) -> array[int] | None:
        """Return the rows that can fulfil `needs`, of this tree's pages and of others'; None where all can.

        Raises IndexDamaged.
        """
        if needs is None:
            return None
        if not needs:
            return array("I")
        expression = match_expression(needs)
        if expression is None:
            return None
        found = self._rows("SELECT rowid AS id FROM text WHERE text MATCH ?", expression)
        return found + self.always

    def rows_of(self, versions: Iterable[bytes | None]) -> array[int]:
        """Return the row of each version in turn, 0 for one that has none. Raises IndexDamaged."""
        with self._lock, _damage_named(self.path):
            rows = dict(self._connection.execute("SELECT version, id FROM pages"))
        return array("I", (rows.get(version, 0) for version in versions))

    def versions_of(self, rows: Collection[int]) -> frozenset[bytes]:
        """Return the versions that have these rows. Raises IndexDamaged."""
        wanted = frozenset(rows)
        with self._lock, _damage_named(self.path):
            pages = self._connection.execute("SELECT id, version FROM pages")
            return frozenset(version for id, version in pages if id in wanted)

    def missing(self, live: Iterable[bytes]) -> list[bytes]:
        """Return those of `live` that have no row. Raises IndexDamaged."""
        with self._lock, _damage_named(self.path):
            return _missing(self._connection, live)

    def worn(self, live: Collection[bytes]) -> bool:
        """Say whether so many rows are none of `live` that a new file is due. Raises IndexDamaged."""
        with self._lock, _damage_named(self.path):
            return _worn(self._connection, live)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _with_traits(self, traits: Trait) -> array[int]:
        return self._rows("SELECT id FROM pages WHERE traits & ?", int(traits))

    def _rows(self, query: str, value: object) -> array[int]:
        # In one string: 60,000 rows take 20 ms so, and 30 one by one.
        with self._lock, _damage_named(self.path):
            every = f"SELECT group_concat(id) FROM ({query})"  # noqa: S608 - a query of ours
            (found,) = self._connection.execute(every, (value,)).fetchone()
        return array("I", map(int, found.split(",")) if found else ())


_IDENTITY = {"application_id": _APPLICATION, "user_version": FORMAT}


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise IndexDamaged(f"{path} cannot be read: {exc}") from exc


def _connect(path: Path, how: str, *, check_same_thread: bool = True) -> sqlite3.Connection:
    # A file that we can use no lock for: an NFS, a directory that is read only. None is needed.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}",
        uri=True,
        isolation_level=None,
        check_same_thread=check_same_thread,
    )


def _missing(connection: sqlite3.Connection, live: Iterable[bytes]) -> list[bytes]:
    have = {version for (version,) in connection.execute("SELECT version FROM pages")}
    return [version for version in live if version not in have]


def _worn(connection: sqlite3.Connection, live: Collection[bytes]) -> bool:
    wanted = live if isinstance(live, set | frozenset) else frozenset(live)
    rows = [version in wanted for (version,) in connection.execute("SELECT version FROM pages")]
    return rows.count(False) >= DEAD * len(rows) > 0


def _digest(path: Path) -> str:
    # O_NONBLOCK: a pipe of this name must not hold up anything.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(path, flags), "rb", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise IndexDamaged(f"{path} is not a regular file")
        return hashlib.file_digest(stream, "sha256").hexdigest()


# -- the files ---------------------------------------------------------------------------------------------


def sealed_files(directory: Path, key: str) -> list[Path]:
    """Return the sealed files of a key, the newest first."""
    return sorted(directory.glob(f"{key}.*{_SUFFIX}"), key=_mtime, reverse=True)


def open_newest(directory: Path, key: str) -> tuple[Index | None, list[str]]:
    """Open the newest sealed file that is whole, and remove those that are not; say what was wrong."""
    wrong: list[str] = []
    for path in sealed_files(directory, key):
        try:
            index = Index.open(path)
        except FileNotFoundError:
            continue  # replaced by a newer one just now
        except OSError as exc:
            wrong.append(str(exc))
        except IndexDamaged as exc:
            wrong.append(str(exc))
            with contextlib.suppress(OSError):
                path.unlink()
        else:
            with contextlib.suppress(OSError):
                os.utime(path)
            return index, wrong
    return None, wrong


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


# -- building ----------------------------------------------------------------------------------------------


class Writer:
    """A file that is being written: a copy of the newest sealed one where that is of use, else a new one.

    Nothing of it counts before `seal`. Raises OSError and sqlite3.Error, after which it is only good for `drop`.
    """

    def __init__(self, directory: Path, key: str, live: Collection[bytes]) -> None:
        self._directory = directory
        self._key = key
        self._unsealed = self._sealed = 0  # bytes of text, as far as this writer knows
        self._drop_abandoned()
        self._path = self._copy_of_use(live) or self._work_file(None)
        try:
            self._connection = self._open()
        except BaseException:
            self._path.unlink()
            raise

    @property
    def due(self) -> bool:
        """Whether so much was added that it is worth a seal."""
        return self._unsealed >= max(SEAL_BYTES, self._sealed // 2)

    @property
    def worth_it(self) -> bool:
        """Whether anything was added since the last seal."""
        return self._unsealed > 0

    def missing(self, live: Iterable[bytes]) -> list[bytes]:
        """Return those of `live` that have no row yet."""
        return _missing(self._connection, live)

    def add(self, pages: Iterable[tuple[bytes, bytes]]) -> None:
        """Add pages: version and bytes. One that has a row is left as it is."""
        execute = self._connection.execute
        execute("BEGIN")
        for version, page in pages:
            traits = traits_of(page)
            row = execute("INSERT OR IGNORE INTO pages VALUES (NULL, ?, ?)", (version, int(traits)))
            if row.rowcount and not traits:
                text = fold(page.decode())
                execute("INSERT INTO text (rowid, page) VALUES (?, ?)", (row.lastrowid, text))
            self._unsealed += len(page)
        execute("COMMIT")

    def seal(self) -> Path:
        """Give what there is so far its name, and remove the files that it replaces."""
        copy = self._work_file(self._path)
        path = self._directory / f"{self._key}.{_digest(copy)}{_SUFFIX}"
        copy.rename(path)
        for old in sealed_files(self._directory, self._key):
            if old != path:
                old.unlink(missing_ok=True)  # whoever has it open goes on with it
        for old in sorted(self._directory.glob(f"*{_SUFFIX}"), key=_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
        self._sealed, self._unsealed = self._sealed + self._unsealed, 0
        return path

    def drop(self) -> None:
        """Remove what was not sealed."""
        self._connection.close()
        self._path.unlink(missing_ok=True)

    def _open(self) -> sqlite3.Connection:
        connection = _connect(self._path, "nolock=1")
        # What a crash leaves half written is thrown away, so nothing is kept to undo it.
        for setting in ("journal_mode=OFF", "synchronous=OFF", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {setting}")
        (format_,) = connection.execute("PRAGMA user_version").fetchone()
        if format_ != FORMAT:  # it is empty: what is copied was opened before
            connection.executescript(_SCHEMA)
        return connection

    def _drop_abandoned(self) -> None:
        """Remove what killed builders left; we hold the lock, so nobody is at it."""
        for path in self._directory.glob(f".{self._key}.*{_UNFINISHED}"):
            path.unlink(missing_ok=True)

    def _work_file(self, content: Path | None) -> Path:
        """Make a file of our own, a copy or empty."""
        descriptor, name = tempfile.mkstemp(
            prefix=f".{self._key}.", suffix=_UNFINISHED, dir=self._directory
        )
        os.close(descriptor)
        try:
            if content is not None:
                shutil.copyfile(content, name)
        except BaseException:
            os.unlink(name)
            raise
        return Path(name)

    def _copy_of_use(self, live: Collection[bytes]) -> Path | None:
        index, _ = open_newest(self._directory, self._key)
        if index is None:
            return None
        try:
            return None if index.worn(live) else self._work_file(index.path)
        except (FileNotFoundError, IndexDamaged):
            return None
        finally:
            index.close()
