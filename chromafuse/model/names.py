"""Which paths can be shown in a mount, and under which name. Pure functions.

A key that cannot be shown is skipped and reported; it never takes a listing or the mount down.
"""

from __future__ import annotations

NAME_MAX = 255  # bytes; NAME_MAX of Linux, see limits.h
CONTROL = ".chromafuse"  # the control directory; every name that begins so is ours
COLLISION_SUFFIX = "~page"


def problem_of(path: str) -> str:
    """Say why `path` cannot be shown, or return the empty string where it can."""
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return "not valid UTF-8"
    if _is_plain(raw):
        return ""
    if not raw:
        return "an empty path"
    if b"\0" in raw:
        return "a NUL byte in the name"
    for name in raw.split(b"/"):
        if not name:
            return "an empty name in the path"
        if name in (b".", b".."):
            return f"a {name.decode()!r} in the path"
        if len(name) > NAME_MAX:
            return f"a name of {len(name)} bytes, over {NAME_MAX}"
        if name.startswith(CONTROL.encode()):
            return f"a reserved name ({CONTROL}…)"
    return ""


def _is_plain(raw: bytes) -> bool:
    """Say of most paths, without taking them apart, that they can be shown; of others nothing."""
    return (
        0 < len(raw) <= NAME_MAX
        and not raw.startswith((b"/", b"."))
        and not raw.endswith(b"/")
        and b"//" not in raw
        and b"/." not in raw
        and b"\0" not in raw
    )


def sort_key(path: str) -> bytes:
    """Return the key that sorts paths depth first, each directory's names in byte order."""
    return path.encode().replace(b"/", b"\0")
