"""Configuration: which file, which key, and what wins over what."""

from __future__ import annotations

from pathlib import Path

import pytest

from chromafuse import config
from chromafuse.config import (
    Chosen,
    Config,
    RedisEntry,
    StoreEntry,
    cache_dir,
    choose,
    choose_redis,
    load_config,
)
from chromafuse.errors import UsageError


@pytest.fixture(autouse=True)
def _no_system_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "etc" / "chromafuse.toml")


def write(path: Path, text: str) -> Path:
    """Write a configuration file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_files_nothing_is_configured(tmp_path: Path) -> None:
    """Neither file has to be there."""
    assert load_config(None, {"XDG_CONFIG_HOME": str(tmp_path)}) == Config()


def test_a_file_says_everything(tmp_path: Path) -> None:
    """Every key is read; paths are taken from the file's own directory."""
    file = write(
        tmp_path / "c.toml",
        "[stores.handbook]\nurl = 'store'\ncollection = 'pages'\ntoken_file = 'token'\nrows_per_call = 7\n"
        "[stores.cloud]\nurl = 'https://chroma.example.org'\n[hub]\nmemory = 1000\n"
        "[redis]\nurl = 'rediss://r'\npassword_file = 'secret'\nca_file = '/ca'\nttl = 60\nvalue_max = 9\n"
        "timeout = 100\n",
    )
    assert load_config(str(file), {}) == Config(
        {
            "handbook": StoreEntry(str(tmp_path / "store"), "pages", str(tmp_path / "token"), 7),
            "cloud": StoreEntry("https://chroma.example.org"),
        },
        1000,
        RedisEntry("rediss://r", str(tmp_path / "secret"), "/ca", 60, 9, 100),
    )


def test_the_users_file_wins_over_the_systems(tmp_path: Path) -> None:
    """Stores of both files are known; of one name, the user's own counts."""
    write(
        config.SYSTEM_FILE, "[stores.a]\nurl='/system'\n[stores.b]\nurl='/system'\n[hub]\nmemory=1"
    )
    write(tmp_path / "own" / "chromafuse" / "chromafuse.toml", "[stores.a]\nurl='/own'\n")
    assert load_config(None, {"XDG_CONFIG_HOME": str(tmp_path / "own")}) == Config(
        {"a": StoreEntry("/own"), "b": StoreEntry("/system")}, 1
    )


def test_the_users_redis_replaces_the_systems(tmp_path: Path) -> None:
    """Nothing of the system's table stays, so that its password goes to no other server."""
    write(config.SYSTEM_FILE, "[redis]\nurl='redis://system'\npassword_file='/secret'\n")
    env = {"XDG_CONFIG_HOME": str(tmp_path / "own")}
    assert load_config(None, env).redis == RedisEntry("redis://system", "/secret")
    write(tmp_path / "own" / "chromafuse" / "chromafuse.toml", "[redis]\nurl='redis://own'\n")
    assert load_config(None, env).redis == RedisEntry("redis://own")


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_named_file_stands_alone(tmp_path: Path, by: str) -> None:
    """With --config or CHROMAFUSE_CONFIG no other file is read; the flag wins."""
    write(config.SYSTEM_FILE, "[stores.a]\nurl='/system'\n")
    named = str(write(tmp_path / "named.toml", "[stores.b]\nurl='/named'\n"))
    env = {"CHROMAFUSE_CONFIG": named if by == "variable" else str(tmp_path / "no")}
    assert load_config(named if by == "flag" else None, env) == Config({"b": StoreEntry("/named")})


def test_home_is_where_the_configuration_is_without_xdg(tmp_path: Path) -> None:
    """Without XDG_CONFIG_HOME, and with a relative one, it is ~/.config."""
    expected = tmp_path / ".config" / "chromafuse" / "chromafuse.toml"
    assert config.user_file({"HOME": str(tmp_path)}) == expected
    assert config.user_file({"HOME": str(tmp_path), "XDG_CONFIG_HOME": "x"}) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = 1", "unknown key a; known are stores, hub, redis"),
        ("redis = 'redis://r'", "redis must be a table, not 'redis://r'"),
        (
            "[redis]\npassword = 'x'",
            "unknown key redis.password; known are url, password_file, ca_file, ttl, value_max, timeout",
        ),
        ("[redis]\nttl = 0", "redis.ttl must be a positive number, not 0"),
        ("[redis]\nttl = '7d'", "redis.ttl must be a positive number, not '7d'"),
        ("[hub]\nmem = 1", "unknown key hub.mem; known are memory"),
        ("[hub]\nmemory = 0", "hub.memory must be a positive number, not 0"),
        ("[hub]\nmemory = true", "hub.memory must be a positive number, not True"),
        ("[stores]\na = 1", "stores.a must be a table, not 1"),
        ("stores = 1", "stores must be a table, not 1"),
        (
            "[stores.a]\ncollection = 'x'",
            "stores.a has no url: a directory, or http(s)://host:port",
        ),
        ("[stores.a]\nurl = ''", "stores.a.url must be a string, not ''"),
        ("[stores.a]\nurl = 1", "stores.a.url must be a string, not 1"),
        ("[stores.'a.b']\nurl = 'x'", "stores.a.b: a store's name has no '/' and no '.'"),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    """A wrong key or value is an error that names its place."""
    file = write(tmp_path / "c.toml", text)
    with pytest.raises(UsageError) as caught:
        load_config(str(file), {})
    assert str(caught.value) == f"{file}: {says}"


@pytest.mark.parametrize("data", [b"a = ", b"\xff"])
def test_what_is_no_toml_is_an_error(tmp_path: Path, data: bytes) -> None:
    """A file that cannot be parsed is never taken for an empty one."""
    file = tmp_path / "c.toml"
    file.write_bytes(data)
    with pytest.raises(UsageError, match="is not TOML"):
        load_config(str(file), {})


def test_a_file_without_an_end_is_an_error() -> None:
    """A device or a huge file is refused after a bounded read."""
    with pytest.raises(UsageError) as caught:
        load_config("/dev/zero", {})
    assert (
        str(caught.value) == "/dev/zero: more than 1,048,576 bytes; that is no configuration file"
    )


def test_an_empty_flag_is_an_error() -> None:
    """A flag whose value is empty, as by an unset shell variable, never means the default."""
    with pytest.raises(UsageError, match="--config is empty"):
        load_config("", {"CHROMAFUSE_CONFIG": "/elsewhere"})
    with pytest.raises(UsageError, match="--collection is empty"):
        choose("./a", Config(), collection="", env={"CHROMAFUSE_COLLECTION": "env"})
    with pytest.raises(UsageError, match="--store-token-file is empty"):
        choose("./a", Config(), token_file="", env={})


def test_flag_beats_environment_beats_file_beats_default() -> None:
    """The order holds for collection and token file."""
    files = Config({"a": StoreEntry("/a", "file", "/file"), "b": StoreEntry("/b")})
    env = {"CHROMAFUSE_COLLECTION": "env", "CHROMAFUSE_STORE_TOKEN_FILE": "/env"}
    assert choose("a", files, collection="flag", token_file="/flag", env=env) == Chosen(
        "/a", "flag", "/flag", None
    )
    assert choose("a", files, env=env) == Chosen("/a", "env", "/env", None)
    assert choose("a", files, env={}) == Chosen("/a", "file", "/file", None)
    assert choose("b", files, env={}) == Chosen("/b", "docs", None, None)


def test_a_token_in_our_variable_wins_over_the_files() -> None:
    """CHROMAFUSE_STORE_TOKEN takes the configured token file's place; CHROMA_API_KEY does not."""
    files = Config({"a": StoreEntry("/a", token_file="/file")})
    assert choose("a", files, env={"CHROMAFUSE_STORE_TOKEN": "x"}).token_file is None
    assert choose("a", files, env={"CHROMA_API_KEY": "x"}).token_file == "/file"


FILE = Config(redis=RedisEntry("redis://file", "/of the file", "/ca", 60, 9, 100))


@pytest.mark.parametrize(
    ("flags", "env", "expected"),
    [
        ({}, {}, ("redis://file", "/of the file", "/ca")),
        ({}, {"CHROMAFUSE_REDIS": "redis://env"}, ("redis://env", None, None)),
        ({"url": "redis://flag"}, {"CHROMAFUSE_REDIS": "x"}, ("redis://flag", None, None)),
        ({"password_file": "f"}, {}, ("redis://file", "f", "/ca")),
        ({}, {"CHROMAFUSE_REDIS_PASSWORD_FILE": "e"}, ("redis://file", "e", "/ca")),
        (
            {"password_file": "f"},
            {"CHROMAFUSE_REDIS_PASSWORD_FILE": "e", "CHROMAFUSE_REDIS_PASSWORD": "p"},
            ("redis://file", "f", "/ca"),
        ),
        ({}, {"CHROMAFUSE_REDIS_PASSWORD": "p"}, ("redis://file", None, "/ca")),
        ({"url": "off"}, {"CHROMAFUSE_REDIS": "x"}, (None, None, None)),
        ({}, {"CHROMAFUSE_REDIS": "off"}, (None, None, None)),
        ({}, {"CHROMAFUSE_REDIS": ""}, ("redis://file", "/of the file", "/ca")),
    ],
)
def test_which_redis_and_whose_password(
    flags: dict[str, str], env: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    """Flag > environment > file; a file's password never goes to a Redis that the file does not name."""
    chosen = choose_redis(FILE, env=env, **flags)
    assert (chosen.url, chosen.password_file, chosen.ca_file) == expected
    assert (chosen.ttl, chosen.value_max, chosen.timeout) == (60, 9, 100)


def test_without_a_redis_there_is_none() -> None:
    """No flag, no variable, no table: no shared cache."""
    assert choose_redis(Config(), env={}) == RedisEntry()


def test_an_empty_redis_is_an_error() -> None:
    """A flag that is empty never means the default."""
    with pytest.raises(UsageError, match="--redis is empty"):
        choose_redis(Config(), url="", env={})
    with pytest.raises(UsageError, match="--redis-password-file is empty"):
        choose_redis(Config(), password_file="", env={})


def test_what_has_a_slash_or_a_dot_is_a_path() -> None:
    """A path is never looked up as a name."""
    files = Config({"a": StoreEntry("/elsewhere")})
    assert [choose(text, files, env={}).url for text in ("./a", "a/", "a.b", "http://a")] == [
        "./a",
        "a/",
        "a.b",
        "http://a",
    ]


def test_the_cache_has_its_place() -> None:
    """CHROMAFUSE_CACHE_DIR, else XDG's, else the system's for root and the home's for others."""
    env = {"HOME": "/home/x"}
    assert cache_dir({"CHROMAFUSE_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}, 0) == Path("/c")
    assert cache_dir({"XDG_CACHE_HOME": "/x"}, 0) == Path("/x/chromafuse")
    assert cache_dir(env, 0) == Path("/var/cache/chromafuse")
    assert cache_dir(env, 1000) == Path("/home/x/.cache/chromafuse")
