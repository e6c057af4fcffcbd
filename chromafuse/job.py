"""What one mount is to be: the values that its supervisor starts hub and view with. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .hub.redislocation import RedisSettings
from .model.access import Identity
from .store.location import StoreLocation


@dataclass(frozen=True, slots=True)
class Job:
    """What to mount, where, for whom."""

    location: StoreLocation
    identity: Identity
    mountpoint: str  # absolute, no symbolic links
    allow_other: bool = False
    cache_dir: Path | None = None
    memory: int | None = None
    rows_per_call: int | None = None
    redis: RedisSettings | None = None
    prefilter: str = "auto"

    def start_line(self, link: int, pin: dict[str, Any] | None) -> dict[str, Any]:
        """Return the hub's start configuration."""
        return {
            "location": self.location.to_json(),
            "identity": {
                "kind": self.identity.kind.value,
                "groups": sorted(self.identity.groups),
            },
            "link_fd": link,
            "cache_dir": str(self.cache_dir) if self.cache_dir else None,
            "memory": self.memory,
            "rows_per_call": self.rows_per_call,
            "redis": self.redis.to_json() if self.redis else None,
            "prefilter": self.prefilter,
            "pin": pin,
        }
