"""Redis URLs: what each means, what is refused, and where the password comes from."""

from __future__ import annotations

import textwrap
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from chromafuse.config import RedisEntry
from chromafuse.errors import UsageError, UserError
from chromafuse.hub.redislocation import (
    RedisLocation,
    RedisSettings,
    parse_redis,
    read_password,
)


@pytest.mark.parametrize(
    ("url", "expected", "shown"),
    [
        ("redis://h", RedisLocation("tcp", "h", 6379), "redis://h:6379/0"),
        ("redis://h:1/2", RedisLocation("tcp", "h", 1, database=2), "redis://h:1/2"),
        ("redis://h/", RedisLocation("tcp", "h", 6379), "redis://h:6379/0"),
        ("redis://[::1]:7", RedisLocation("tcp", "::1", 7), "redis://[::1]:7/0"),
        (
            "redis://al%40ice@h",
            RedisLocation("tcp", "h", 6379, username="al@ice"),
            "redis://h:6379/0",
        ),
        ("REDISS://h", RedisLocation("tls", "h", 6379), "rediss://h:6379/0"),
        (
            "rediss://h?ca_file=/a%20b/ca.pem",
            RedisLocation("tls", "h", 6379, ca_file="/a b/ca.pem"),
            "rediss://h:6379/0",
        ),
        (
            "unix:///run/a%20b.sock",
            RedisLocation("unix", path="/run/a b.sock"),
            "unix:///run/a%20b.sock",
        ),
        (
            "unix://bob@/run/r.sock?db=4",
            RedisLocation("unix", path="/run/r.sock", database=4, username="bob"),
            "unix:///run/r.sock?db=4",
        ),
    ],
)
def test_a_url_is_a_location(url: str, expected: RedisLocation, shown: str) -> None:
    """Every form of URL means what it says, and is shown without the user's name."""
    assert parse_redis(url) == expected
    assert str(expected) == shown


def test_files_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub runs in another directory, so paths are taken from this one."""
    monkeypatch.chdir(tmp_path)
    found = parse_redis("rediss://h?ca_file=ca", password_file="secret")
    assert (found.ca_file, found.password_file) == (str(tmp_path / "ca"), str(tmp_path / "secret"))
    assert parse_redis("rediss://h", ca_file="ca").ca_file == str(tmp_path / "ca")


MALFORMED = (
    "the Redis URL is malformed; it is redis[s]://[user@]host[:port][/database][?ca_file=F], or "
    "unix:///path[?db=N]"
)
NO_PASSWORD = (
    "a Redis URL takes no password, it would show in process lists; put it into a file and name that with "
    "--redis-password-file, or set CHROMAFUSE_REDIS_PASSWORD"
)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://:secret@h", NO_PASSWORD),
        ("rediss://user:secret@h:1/0", NO_PASSWORD),
        ("redis://:@h", NO_PASSWORD),
        ("unix://user:secret@/run/r.sock", NO_PASSWORD),
        ("localhost:6379", MALFORMED),
        ("h", MALFORMED),
        ("http://h", MALFORMED),
        ("redis://", MALFORMED),
        ("redis://h:x", MALFORMED),
        ("redis://h:0", MALFORMED),
        ("redis://h:70000", MALFORMED),
        ("redis://h/one", MALFORMED),
        ("redis://h/1/2", MALFORMED),
        ("redis://h/-1", MALFORMED),
        ("redis://h /", MALFORMED),
        ("redis://h#x", MALFORMED),
        ("redis://[::1", MALFORMED),
        ("unix://run/r.sock", MALFORMED),
        ("unix://", MALFORMED),
        ("unix:///", MALFORMED),
        ("unix:///a%00b", MALFORMED),
        ("unix:///a?db=x", MALFORMED),
        ("unix:///a?db", MALFORMED),
        ("unix:///a?password=x", "after the ? of this Redis URL there can be db=… only"),
        ("redis://h?db=1", "after the ? of this Redis URL there can be ca_file=… only"),
        (
            "rediss://h?ssl_cert_reqs=none",
            "after the ? of this Redis URL there can be ca_file=… only",
        ),
        ("rediss://h?ca_file=", "after the ? of this Redis URL there can be ca_file=… only"),
        ("redis://h?ca_file=/x", "a CA file goes with rediss:// only; redis:// is not encrypted"),
    ],
)
def test_what_is_no_location_is_said_without_the_url(url: str, says: str) -> None:
    """A URL that cannot be used is one line that does not repeat it, since it may hold a secret."""
    with pytest.raises(UsageError) as caught:
        parse_redis(url)
    assert str(caught.value) == says


def test_settings_travel_as_json() -> None:
    """What one process writes another reads, and there is no secret in it."""
    settings = RedisSettings(parse_redis("rediss://u@h?ca_file=/c", password_file="/p"), 5, 6, 7)
    assert RedisSettings.from_json(settings.to_json()) == settings


def test_the_documented_table_has_every_key_and_the_defaults() -> None:
    """The example of the configuration is read as it stands; its numbers are those that count without it."""
    text = (Path(__file__).parents[1] / "docs" / "SEMANTICS.md").read_text()
    lines = text[text.index("    [redis]") :].split("\n\n")[0]
    (table,) = tomllib.loads(textwrap.dedent(lines)).values()
    location = parse_redis(table["url"], password_file=table["password_file"])
    assert table == {
        "url": "rediss://cache.example.org",
        "password_file": "redis-password",
        "ca_file": "ca.pem",
        "ttl": RedisSettings(location).ttl,
        "value_max": RedisSettings(location).value_max,
        "timeout": RedisSettings(location).timeout,
    }
    assert table.keys() == {found.name for found in fields(RedisEntry)}


@pytest.mark.parametrize(
    ("data", "password"),
    [(b"secret\n", "secret"), (b"two words ", "two words "), (b"\xc3\xbc\r\n", "ü")],
)
def test_a_password_is_one_line(tmp_path: Path, data: bytes, password: str) -> None:
    """The line's end goes, everything else is the password."""
    (tmp_path / "p").write_bytes(data)
    location = parse_redis("redis://h", password_file=str(tmp_path / "p"))
    assert read_password(location, {"CHROMAFUSE_REDIS_PASSWORD": "other"}) == password


@pytest.mark.parametrize("data", [b"", b"\n", b"a\nb\n", b"\xff\n", b"x" * 9_000])
def test_what_is_no_password_is_said(tmp_path: Path, data: bytes) -> None:
    """An empty, a binary, a long file and one of two lines are mistakes."""
    (tmp_path / "p").write_bytes(data)
    location = parse_redis("redis://h", password_file=str(tmp_path / "p"))
    with pytest.raises(UserError) as caught:
        read_password(location, {})
    expected = f"{tmp_path}/p holds no password: one line of UTF-8 is expected"
    assert (str(caught.value), caught.value.exit_code) == (expected, 1)


def test_a_password_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    """A named file must be there; the environment does not stand in for it."""
    location = parse_redis("redis://h", password_file=str(tmp_path / "p"))
    with pytest.raises(UserError, match=r"cannot read the Redis password file .*/p: No such file"):
        read_password(location, {"CHROMAFUSE_REDIS_PASSWORD": "x"})


def test_the_environment_has_the_password() -> None:
    """Without a file the variable counts; empty is none."""
    location = parse_redis("redis://h")
    assert read_password(location, {"CHROMAFUSE_REDIS_PASSWORD": "x"}) == "x"
    assert read_password(location, {"CHROMAFUSE_REDIS_PASSWORD": ""}) is None
    assert read_password(location, {}) is None
