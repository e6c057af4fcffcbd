"""What `chromafuse status` knows: the supervisors' answers, held against the mount table.

Concurrency: many mounts are asked at once, in threads: one that hangs costs its own time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import mountinfo, runtime
from .errors import UserError
from .mountinfo import Health
from .text import printable, quoted

COLUMNS = ("MOUNTPOINT", "STATE", "PAGES", "IDENTITY", "STORE", "COLLECTION")
_PROBE = 1.5  # s; an answer comes within 2 s whatever hangs
_AT_ONCE = 16


def row(mount: dict[str, Any]) -> Sequence[str]:
    """Return the cells of one mount in the list."""
    pages = mount.get("pages")
    return (
        printable(mount["mountpoint"]),
        _state(mount),
        f"{pages:,}" if pages is not None else "-",
        *(printable(str(mount.get(name, "-"))) for name in ("identity", "store", "collection")),
    )


def _state(mount: dict[str, Any]) -> str:
    """Return the state, and what does not work in a mount that lives."""
    if mount["state"] != "live":
        return str(mount["state"])
    wrong = [f"{part} {mount[part]}" for part in ("hub", "view") if mount.get(part, "ok") != "ok"]
    wrong += ["store down"] if not mount.get("store_up", True) else []
    wrong += ["redis down"] if mount.get("redis") == "down" else []
    return ", ".join(["live", *wrong])


def all_mounts() -> list[dict[str, Any]]:
    """Return what is known of every mount: those in the mount table, and those that are just starting."""
    points = {mount.path for mount in mountinfo.read_mounts() if mount.is_ours}
    known = {runtime.key_of(point): point for point in points}
    keys = sorted({*known, *runtime.keys()})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda key: _mount(key, known.get(key)), keys)
        return sorted((one for one in found if one), key=lambda one: str(one["mountpoint"]))


def one_mount(path: str) -> dict[str, Any]:
    """Return what is known of the mount at `path`. Raises UserError where there is none of ours."""
    ours = any(mount.is_ours for mount in mountinfo.layers(path))
    found = _mount(runtime.key_of(path), path if ours else None)
    if not found:
        raise UserError(
            f"{printable(path)} is no mount of chromafuse; `chromafuse status` lists the mounts"
        )
    return found


def _mount(key: str, path: str | None) -> dict[str, Any]:
    """Return the supervisor's answer, or what can be said without one; nothing where there is no mount."""
    supervisor = runtime.find(key)
    if supervisor is not None and supervisor.status is not None:
        return supervisor.status
    if path is None:
        return {}
    if supervisor is not None:
        note = "its supervisor does not answer"
        return {
            "mountpoint": path, "state": "hung", "note": note, "supervisor_pid": supervisor.pid,
        }  # fmt: skip
    health = mountinfo.probe(path, timeout=_PROBE)
    notes = {
        Health.DEAD: f"its processes are gone; `chromafuse umount {quoted(path)}` clears it",
        Health.HUNG: f"it does not answer; `chromafuse umount {quoted(path)}` ends it",
        Health.LIVE: "no supervisor of yours: another user's mount, or another runtime directory's",
    }
    return {"mountpoint": path, "state": health.value, "note": notes[health]}
