"""A mount with everything in memory, of pyfuse3 and fast mode alone: a program that a test talks to.

    python -m tests.support.memory_mount MOUNTPOINT

The first line of stdin is the plan, {"files": {path: text}, "many": {directory: [count, size]}}. Then one line
of JSON in, one out: {"ask": "counters"} and so on, see `Program.answer`. Handles are inodes, as in the view.
It counts the requests that reach it, by handler.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from chromafuse.view import fast

LOADED = fast.load()  # before pyfuse3, or it is too late
if os.environ.get("GIVE_UP"):
    LOADED = LOADED.give_up("a test says so")

import pyfuse3  # noqa: E402
import trio  # noqa: E402

FOREVER = float("inf")
MTIME = 1_700_000_000_123_456_789


@dataclass
class Node:
    """A file, or a directory of (name, inode) in the order of their cookies."""

    inode: int
    data: bytes = b""
    children: dict[bytes, int] | None = None
    error: int = 0  # errno that reads end with

    def attributes(self) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = self.inode
        entry.st_mode = 0o040555 if self.children is not None else 0o100444
        entry.st_nlink = 1
        entry.st_size = 4096 if self.children is not None else len(self.data)
        entry.st_blocks = -(-entry.st_size // 512)
        entry.st_blksize = 4096
        entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = MTIME
        entry.entry_timeout = entry.attr_timeout = FOREVER
        return entry


@dataclass
class Tree:
    """Nodes by inode; the root is 1."""

    nodes: dict[int, Node] = field(default_factory=lambda: {1: Node(1, children={})})

    def add(self, path: str, data: bytes) -> None:
        parent = self.nodes[1]
        *directories, name = path.encode().split(b"/")
        for directory in directories:
            parent = self.child(parent, directory) or self.new(parent, directory, children={})
        self.new(parent, name, data=data)

    def new(self, parent: Node, name: bytes, **what: Any) -> Node:
        node = Node(len(self.nodes) + 1, **what)
        self.nodes[node.inode] = node
        assert parent.children is not None
        parent.children[name] = node.inode
        return node

    def child(self, parent: Node, name: bytes) -> Node | None:
        assert parent.children is not None
        inode = parent.children.get(name)
        return self.nodes[inode] if inode else None

    def at(self, path: str) -> Node:
        node: Node | None = self.nodes[1]
        for name in path.encode().split(b"/"):
            assert node is not None
            node = self.child(node, name)
        assert node is not None
        return node


def filled(path: str, size: int) -> bytes:
    """Return the bytes of a file of `many`."""
    return (path.encode() + b"\n").ljust(size, b"x")[:size]


class Operations(pyfuse3.Operations):
    """Reads of a tree; all else is refused."""

    supports_dot_lookup = False

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.tree, self.counters, self.forgotten = tree, Counter[str](), 0
        self.mode_at_init = ""
        self.started = trio.Event()
        self.nursery: trio.Nursery

    def init(self) -> None:
        self.mode_at_init = LOADED.mode
        self.started.set()

    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        self.counters["lookup"] += 1
        node = self.tree.child(self._node(parent_inode), name)
        if node:
            return node.attributes()
        absent = pyfuse3.EntryAttributes()
        absent.st_ino, absent.entry_timeout = 0, FOREVER
        return absent

    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        self.counters["getattr"] += 1
        return self._node(inode).attributes()

    async def opendir(self, inode: int, ctx: Any) -> int:
        self.counters["opendir"] += 1
        return inode

    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        self.counters["readdir"] += 1
        children = self._node(fh).children
        assert children is not None
        for slot, (name, inode) in enumerate(list(children.items())[start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, self._node(inode).attributes(), slot):
                break

    async def releasedir(self, fh: int) -> None:
        self.counters["releasedir"] += 1

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        self.counters["open"] += 1
        if flags & (os.O_ACCMODE | os.O_TRUNC):
            raise pyfuse3.FUSEError(errno.EROFS)
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    async def release(self, fh: int) -> None:
        self.counters["release"] += 1

    async def read(self, fh: int, off: int, size: int) -> bytes:
        self.counters["read"] += 1
        node = self._node(fh)
        if node.error:
            raise pyfuse3.FUSEError(node.error)
        return node.data[off : off + size]

    async def forget(self, inode_list: Any) -> None:
        self.forgotten += sum(1 for _ in inode_list)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        self.counters["write"] += 1
        # Not awaited: the kernel drops the page only after it has the answer.
        self.nursery.start_soon(trio.to_thread.run_sync, pyfuse3.invalidate_inode, fh)
        raise pyfuse3.FUSEError(errno.EROFS)

    async def setattr(self, *_: Any) -> Any:
        self.counters["setattr"] += 1
        raise pyfuse3.FUSEError(errno.EROFS)

    async def flush(self, fh: int) -> None:
        self.counters["flush"] += 1
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        self.counters["getxattr"] += 1
        raise pyfuse3.FUSEError(errno.ENOSYS)

    def _node(self, inode: int) -> Node:
        try:
            return self.tree.nodes[inode]
        except KeyError:
            raise pyfuse3.FUSEError(errno.ESTALE) from None


class Program:
    """The mount and the lines about it."""

    def __init__(self, point: str, plan: dict[str, Any]) -> None:
        self.point = point
        self.tree = Tree()
        for path, text in plan.get("files", {}).items():
            self.tree.add(path, text.encode())
        for directory, (count, size) in plan.get("many", {}).items():
            for number in range(count):
                path = f"{directory}/{number:05}.md"
                self.tree.add(path, filled(path, size))
        self.ops = Operations(self.tree)

    async def run(self) -> None:
        options = {"fsname=chromafuse", "subtype=chromafuse", "default_permissions"}
        pyfuse3.init(self.ops, self.point, options | {"ro", "nosuid", "nodev", "noexec"})
        try:
            async with trio.open_nursery() as nursery:
                self.ops.nursery = nursery
                nursery.start_soon(self._talk)
                await pyfuse3.main(max_tasks=2048)
                nursery.cancel_scope.cancel()
        finally:
            pyfuse3.close(unmount=True)

    async def _talk(self) -> None:
        await self.ops.started.wait()
        say({"state": "mounted"})
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            say(await self.answer(json.loads(line)))
        pyfuse3.terminate()

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer one line."""
        ask = question["ask"]
        if ask == "counters":  # since the last time
            counters = dict(self.ops.counters)
            self.ops.counters.clear()
            return counters
        if ask == "mode":
            return {"mode": LOADED.mode, "why": LOADED.why_stock(), "init": self.ops.mode_at_init}
        if ask == "forgotten":
            return {"forgotten": self.ops.forgotten}
        if ask == "fail":
            self.tree.at(question["path"]).error = question["errno"]
            return {}
        if ask == "invalidate":
            where = 1, question["name"].encode()
            await trio.to_thread.run_sync(pyfuse3.invalidate_entry, *where)
            return {}
        if ask == "push":
            return await trio.to_thread.run_sync(self._push, question["below"])
        if ask == "self-test":
            directory, files = question["directory"], question["files"]
            files = {name: text.encode() for name, text in files.items()}
            where = os.path.join(self.point, directory)
            found = await trio.to_thread.run_sync(fast.self_test, where, files)
            return {"found": found}
        raise ValueError(ask)

    def _push(self, below: str) -> dict[str, Any]:
        pushed, unknown = 0, 0
        children = self.tree.at(below).children
        assert children is not None
        for inode in children.values():
            try:
                pyfuse3.notify_store(inode, 0, self.tree.nodes[inode].data)
                pushed += 1
            except FileNotFoundError:  # the kernel has never heard of it
                unknown += 1
        return {"pushed": pushed, "unknown": unknown}


def say(line: dict[str, Any]) -> None:
    """Write one line to whoever started this."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(Program(sys.argv[1], json.loads(sys.stdin.readline())).run)
