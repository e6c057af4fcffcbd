"""Stand-ins for modules that a view does not use: nothing is missing, and nothing of them stays."""

from __future__ import annotations

import importlib.metadata
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chromafuse.view import lean

CHECKOUT = Path(__file__).resolve().parents[1]
START = """
import json, sys
from chromafuse.view import fast, lean
fast.load()
with lean.imports():
    import chromafuse.view.process
"""


def said(program: str) -> Any:
    """Run a program that starts as a view does and prints JSON."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", START + program],
        cwd=CHECKOUT,
        env={"PYTHONPATH": str(CHECKOUT)},
        check=True,
        capture_output=True,
    )
    assert done.stderr == b""
    return json.loads(done.stdout)


def test_a_view_loads_no_module_that_it_does_not_use() -> None:
    """Neither what is stood in for, nor what those would load, is in a started view."""
    unused = [*lean.UNUSED, "importlib.metadata", "ctypes.util"]
    unused += ["_ssl", "_hashlib", "email", "zipfile", "csv", "bz2", "lzma", "argparse", "gettext"]
    assert said(f"print(json.dumps([name for name in {unused} if name in sys.modules]))") == []


def test_what_is_stood_in_for_works_at_the_first_use() -> None:
    """Libraries that hold a stand-in get the real thing from it, and so does who imports it now."""
    program = """
import ctypes.util, importlib.metadata, trio
held = trio._ssl._stdlib_ssl
protocol = held.create_default_context().protocol.name
import ssl
print(json.dumps([
    held is ssl,
    held.SSLContext is ssl.SSLContext,
    protocol,
    trio._socket._idna.encode("bücher.example").decode(),
    importlib.metadata.version("trio") == trio.__version__,
    ctypes.util.find_library("c"),
    type(sys.modules["ssl"]).__name__,
]))
"""
    expected = [False, True, "PROTOCOL_TLS_CLIENT", "xn--bcher-kva.example", True]
    assert said(program) == [*expected, "libc.so.6", "module"]


def test_threads_keep_their_names() -> None:
    """The library that trio names threads with is found without a search."""
    program = """
import trio
def name():
    with open("/proc/thread-self/comm", encoding="ascii") as comm:
        return comm.read()
async def main():
    return await trio.to_thread.run_sync(name, thread_name="a worker")
print(json.dumps(trio.run(main)))
"""
    assert said(program) == "a worker\n"


def test_a_library_that_is_searched_for_is_found() -> None:
    """Only the library of threads is known without a search; others are searched for."""
    program = """
with lean.imports():
    import ctypes.util
    print(json.dumps([ctypes.util.find_library("pthread"), ctypes.util.find_library("z")]))
"""
    assert said(program) == ["libpthread.so.0", "libz.so.1"]


def test_a_loaded_module_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded stays in its place, stand-ins leave theirs, whatever the imports came to."""
    monkeypatch.delitem(sys.modules, "idna", raising=False)

    def failing_import() -> None:
        with lean.imports():
            assert sys.modules["ssl"] is ssl
            assert sys.modules["importlib.metadata"] is importlib.metadata
            assert isinstance(sys.modules["idna"], lean.StandIn)
            raise ImportError

    with pytest.raises(ImportError):
        failing_import()
    assert "idna" not in sys.modules


def test_a_name_that_nothing_has_is_an_attribute_error() -> None:
    """A stand-in has no names that the real module lacks."""
    stand_in = lean.StandIn("colorsys")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = stand_in.nonsense
    assert stand_in.rgb_to_hsv(1, 0, 0) == (0, 1, 1)
