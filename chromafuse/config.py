"""What the configuration files and the environment say, and which of them wins.

Flag > environment > file > default. The files are TOML: the system's, then the user's own, whose stores win
over the system's of the same name, and whose `[redis]` replaces the system's; one that is named with
`--config` or CHROMAFUSE_CONFIG stands alone. A key that nobody knows is an error: a typing mistake must not
become a default.

Concurrency: values, and functions that read two small files.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .errors import UsageError

SYSTEM_FILE = Path("/etc/chromafuse/chromafuse.toml")
SYSTEM_CACHE = Path("/var/cache/chromafuse")
DEFAULT_COLLECTION = "docs"
REDIS_OFF = "off"  # instead of a URL: no shared cache, whatever wins less says

_STORE_KEYS: dict[str, type] = {
    "url": str,
    "collection": str,
    "token_file": str,
    "rows_per_call": int,
}
PREFILTERS = ("auto", "index", "chroma", "none")  # how candidates of a search are found
_HUB_KEYS: dict[str, type] = {"memory": int}
_REDIS_KEYS: dict[str, type] = {
    "url": str,
    "password_file": str,
    "ca_file": str,
    "ttl": int,
    "value_max": int,
    "timeout": int,
}
_FILE_MAX = 1 << 20  # bytes; more is not a configuration file but the wrong one
_KINDS = {str: "a string", int: "a positive number"}


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One `[stores.NAME]`: a store under a name. Paths in it are absolute."""

    url: str
    collection: str | None = None
    token_file: str | None = None
    rows_per_call: int | None = None


@dataclass(frozen=True, slots=True)
class RedisEntry:
    """`[redis]`: the shared cache. Paths in it are absolute. Without a URL there is none."""

    url: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    ttl: int | None = None  # s
    value_max: int | None = None  # bytes
    timeout: int | None = None  # ms


@dataclass(frozen=True, slots=True)
class Config:
    """All that the files say."""

    stores: Mapping[str, StoreEntry] = field(default_factory=dict)
    memory: int | None = None  # bytes of page cache in a hub
    redis: RedisEntry | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The store of one command: what is left when flags, environment and files have been weighed."""

    url: str  # a directory or a URL
    collection: str
    token_file: str | None
    rows_per_call: int | None


def load_config(named: str | None, env: Mapping[str, str] = os.environ) -> Config:
    """Read the file `named`, or that of CHROMAFUSE_CONFIG, or the system's and the user's own.

    Raises UsageError for a named file that is not there, bad TOML, unknown keys and wrong values.
    """
    if named == "":
        raise UsageError("--config is empty; name a file, or leave it out")
    named = named or env.get("CHROMAFUSE_CONFIG") or None
    if named is not None:
        return _read(Path(named), required=True)
    system, own = _read(SYSTEM_FILE), _read(user_file(env))
    memory = system.memory if own.memory is None else own.memory
    return Config({**system.stores, **own.stores}, memory, own.redis or system.redis)


def user_file(env: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the user's own configuration file."""
    return _xdg(env, "XDG_CONFIG_HOME", ".config") / "chromafuse" / "chromafuse.toml"


def cache_dir(env: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """Return the directory of caches; absolute, and not made here."""
    if env.get("CHROMAFUSE_CACHE_DIR"):
        return Path(os.path.abspath(env["CHROMAFUSE_CACHE_DIR"]))
    if not env.get("XDG_CACHE_HOME") and (os.geteuid() if uid is None else uid) == 0:
        return SYSTEM_CACHE
    return _xdg(env, "XDG_CACHE_HOME", ".cache") / "chromafuse"


def choose(
    store: str,
    config: Config,
    *,
    collection: str | None = None,
    token_file: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> Chosen:
    """Return the store that STORE and the flags mean. Raises UsageError for a name that no file has."""
    for flag, value in (("--collection", collection), ("--store-token-file", token_file)):
        if value == "":  # a shell variable that is not set must not mean the default
            raise UsageError(f"{flag} is empty; name one, or leave it out")
    entry = _entry(store, config)
    token_file = token_file or env.get("CHROMAFUSE_STORE_TOKEN_FILE") or None
    # A token in our own variable wins over the file's; CHROMA_API_KEY may be meant for another server.
    if token_file is None and not env.get("CHROMAFUSE_STORE_TOKEN"):
        token_file = entry.token_file
    return Chosen(
        entry.url,
        collection or env.get("CHROMAFUSE_COLLECTION") or entry.collection or DEFAULT_COLLECTION,
        token_file,
        entry.rows_per_call,
    )


def choose_redis(
    config: Config,
    *,
    url: str | None = None,
    password_file: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> RedisEntry:
    """Return the shared cache that flags, environment and files mean; none where `url` is None.

    A file's password and authorities go with that file's URL only: another one may be another server's.
    """
    for flag, value in (("--redis", url), ("--redis-password-file", password_file)):
        if value == "":
            raise UsageError(f"{flag} is empty; name one, or leave it out")
    entry = config.redis or RedisEntry()
    named = url or env.get("CHROMAFUSE_REDIS") or None
    if named is not None:
        entry = replace(entry, url=named, password_file=None, ca_file=None)
    password_file = password_file or env.get("CHROMAFUSE_REDIS_PASSWORD_FILE") or None
    if password_file is not None or env.get("CHROMAFUSE_REDIS_PASSWORD"):
        entry = replace(entry, password_file=password_file)
    return replace(entry, url=None) if entry.url == REDIS_OFF else entry


def _entry(store: str, config: Config) -> StoreEntry:
    if "/" in store or "." in store:
        return StoreEntry(store)
    if store in config.stores:
        return config.stores[store]
    known = ", ".join(sorted(config.stores)) or "none"
    raise UsageError(
        f"{store!r} is not a store: give a directory (./{store or 'DIR'}), http(s)://host:port, or a name "
        f"from the configuration file (it has: {known})"
    )


# -- reading a file ------------------------------------------------------------------------------------


def _read(path: Path, *, required: bool = False) -> Config:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_MAX + 1)
        if len(data) > _FILE_MAX:
            raise UsageError(
                f"{path}: more than {_FILE_MAX:,} bytes; that is no configuration file"
            )
        raw = tomllib.loads(data.decode())
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise UsageError(f"there is no configuration file {path}; check --config") from None
        return Config()
    except OSError as exc:
        raise UsageError(f"cannot read the configuration file {path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} is not TOML: {exc}") from exc
    _check_keys(path, "", raw, ("stores", "hub", "redis"))
    base = Path(os.path.abspath(path)).parent
    stores = {
        name: _store(path, base, name, table)
        for name, table in _table(path, "stores", raw.get("stores", {})).items()
    }
    hub = _values(path, "hub", raw.get("hub", {}), _HUB_KEYS)
    return Config(stores, hub.get("memory"), _redis(path, base, raw))


def _store(path: Path, base: Path, name: str, table: Any) -> StoreEntry:
    where = f"stores.{name}"
    if "/" in name or "." in name or not name:
        raise UsageError(f"{path}: {where}: a store's name has no '/' and no '.'")
    values = _values(path, where, table, _STORE_KEYS)
    if "url" not in values:
        raise UsageError(f"{path}: {where} has no url: a directory, or http(s)://host:port")
    if "://" not in values["url"]:
        values["url"] = str(base / values["url"])
    if "token_file" in values:
        values["token_file"] = str(base / values["token_file"])
    return StoreEntry(**values)


def _redis(path: Path, base: Path, raw: Mapping[str, Any]) -> RedisEntry | None:
    if "redis" not in raw:
        return None
    values = _values(path, "redis", raw["redis"], _REDIS_KEYS)
    for key in ("password_file", "ca_file"):
        if key in values:
            values[key] = str(base / values[key])
    return RedisEntry(**values)


def _values(path: Path, where: str, table: Any, kinds: Mapping[str, type]) -> dict[str, Any]:
    values = _table(path, where, table)
    _check_keys(path, f"{where}.", values, tuple(kinds))
    for key, value in values.items():
        kind = kinds[key]
        if type(value) is not kind or not value or (isinstance(value, int) and value < 0):
            raise UsageError(f"{path}: {where}.{key} must be {_KINDS[kind]}, not {value!r}")
    return dict(values)


def _table(path: Path, where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {where} must be a table, not {value!r}")
    return value


def _check_keys(path: Path, where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise UsageError(f"{path}: unknown key {where}{key}; known are {', '.join(known)}")


def _xdg(env: Mapping[str, str], name: str, fallback: str) -> Path:
    # The XDG specification has relative paths ignored.
    value = env.get(name, "")
    if os.path.isabs(value):
        return Path(value)
    return Path(env.get("HOME") or os.path.expanduser("~")) / fallback
