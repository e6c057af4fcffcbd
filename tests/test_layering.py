"""Who may import whom: the table of docs/DESIGN.md, enforced on the source and at run time."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "chromafuse"

# Part of the package -> the parts it may import. A part is a module or package right below the top.
# Any other module at the top belongs to the command line: it may import all parts, and none of
# them may import it.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors"},
    "wire": {"errors", "model"},
    "store": {"errors", "model"},
    "config": {"errors"},
    "mounttable": set(),
    "view": {"errors", "model", "wire", "mounttable"},
    "search": {"errors", "model"},
    "hub": {"errors", "model", "wire", "store", "search", "config"},
    "ingest": {"errors", "model", "store", "config"},
}

# Library -> the modules (by prefix) that may import it.
OWNERS: dict[str, tuple[str, ...]] = {
    "chromadb": ("chromafuse.store.worker",),
    "chromadb_rust_bindings": ("chromafuse.store.worker",),
    "httpx": ("chromafuse.store.rest",),
    "pyfuse3": ("chromafuse.view",),
    "redis": ("chromafuse.hub.redisserver",),
}
PURE = (
    "chromafuse.errors",
    "chromafuse.model",
    "chromafuse.wire",
    "chromafuse.search.gnu",
    "chromafuse.search.gnu_globs",
    "chromafuse.search.gnu_options",
    "chromafuse.search.gnu_regex",
    "chromafuse.search.literals",
    "chromafuse.search.needs",
    "chromafuse.search.plan",
    "chromafuse.search.perl_regex",
    "chromafuse.search.ripgrep",
    "chromafuse.search.ripgrep_options",
    "chromafuse.search.rust_regex",
)
# What a pure module may use besides ours: encoding, digests, arithmetic. No clock, no file, no socket.
PURE_LIBRARIES = {
    "__future__", "array", "base64", "binascii", "bisect", "collections", "contextlib",
    "dataclasses", "enum", "errno", "fnmatch", "functools", "gzip", "hashlib", "io",
    "itertools", "json", "math", "operator", "orjson", "pathspec", "posixpath", "re", "stat",
    "string", "struct", "sys", "typing", "types", "unicodedata", "zlib", "zstandard",
}  # fmt: skip


def modules() -> Iterator[tuple[str, Path]]:
    """Yield the dotted name and the file of every module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(name: str, path: Path) -> Iterator[str]:
    """Yield the absolute dotted name of everything that a module imports, wherever in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def ours(imported: str) -> str | None:
    """Return the part of the package that an imported name lies in, or None."""
    top, _, rest = imported.partition(".")
    return rest.split(".")[0] if top == "chromafuse" and rest else None


def below(name: str, prefixes: tuple[str, ...]) -> bool:
    """Say whether a dotted name is one of the prefixes or inside one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def breaches_of_direction() -> Iterator[str]:
    """Yield a line for every import from a part of the package that the table does not allow."""
    for name, path in modules():
        part = ours(name)
        if part not in ALLOWED:
            continue
        for imported in imports(name, path):
            target = ours(imported)
            if target in (None, part, "__version__"):
                continue
            if target not in ALLOWED[part]:
                yield f"{name} imports {imported}"


def test_parts_import_only_what_lies_below_them() -> None:
    """The parts of the package import each other in the direction of the table only."""
    assert list(breaches_of_direction()) == []


def test_every_directory_of_the_package_has_its_row() -> None:
    """A new subpackage gets its place in the table before it gets code."""
    found = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found - set(ALLOWED) == set()


def test_libraries_stay_in_their_module() -> None:
    """Chroma, HTTP, Redis and FUSE are imported by the one place that owns them."""
    breaches = [
        f"{name} imports {imported}"
        for name, path in modules()
        for imported in imports(name, path)
        for library in [imported.split(".")[0]]
        if library in OWNERS and not below(name, OWNERS[library])
    ]
    assert breaches == []


def test_pure_modules_do_no_io() -> None:
    """Errors, model and frames import neither trio nor anything that touches the outside."""
    breaches = [
        f"{name} imports {imported}"
        for name, path in modules()
        if below(name, PURE)
        for imported in imports(name, path)
        if imported.split(".")[0] not in PURE_LIBRARIES | {"chromafuse"}
    ]
    assert breaches == []


def loaded_by(*packages: str, without: tuple[str, ...] = ()) -> set[str]:
    """Return the top names in sys.modules after importing every module of the packages, alone."""
    names = [name for name, _ in modules() if below(name, packages) and not below(name, without)]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    return set(result.stdout.split())


@pytest.mark.parametrize(
    ("packages", "absent"),
    [
        (PURE, {"trio", "pyfuse3", "chromadb", "httpx", "redis", "rich", "yaml", "socket"}),
        (("chromafuse.view",), {"chromadb", "httpx", "redis", "rich", "yaml"}),
        (("chromafuse.hub",), {"chromadb", "pyfuse3", "redis", "rich"}),
        (("chromafuse.cli", "chromafuse.ingest"), {"chromadb", "pyfuse3"}),
    ],
    ids=["pure", "view", "hub", "cli"],
)
def test_processes_do_not_load_what_is_not_theirs(
    packages: tuple[str, ...], absent: set[str]
) -> None:
    """A process of ours, with every module of its own imported, holds no library of another one."""
    assert loaded_by(*packages) & absent == set()


def test_the_check_sees_relative_imports(tmp_path: Path) -> None:
    """Relative imports are resolved to the names that the table speaks of."""
    source = tmp_path / "x.py"
    source.write_text("from . import a\nfrom ..wire import b\nfrom .. import hub\nimport c.d\n")
    assert list(imports("chromafuse.view.x", source)) == [
        "chromafuse.view.a",
        "chromafuse.wire.b",
        "chromafuse.hub",
        "c.d",
    ]
