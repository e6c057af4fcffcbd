"""What a STORE may be, and how its token is found; no secret shows anywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chromafuse.errors import UsageError, UserError
from chromafuse.store.location import StoreLocation, parse_store, read_token

SECRET = "s3cret-token"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://localhost:8000", "http://localhost:8000/default_tenant/default_database"),
        ("https://chroma.example", "https://chroma.example:443/default_tenant/default_database"),
        ("HTTP://Host:1/", "http://host:1/default_tenant/default_database"),
        ("http://[::1]:8000/t/d", "http://[::1]:8000/t/d"),
        ("https://h:443/0f2c-4e/my%20db", None),
        ("https://h:443/0f2c-4e/my.db/", "https://h:443/0f2c-4e/my.db"),
        ("/srv/docs", "/srv/docs"),
        ("/srv/../srv/docs/", "/srv/docs"),
    ],
)
def test_what_a_store_may_be(text: str, shown: str | None) -> None:
    """URLs and paths are understood; None marks what is refused."""
    if shown is None:
        with pytest.raises(UsageError):
            parse_store(text, env={})
    else:
        assert str(parse_store(text, env={})) == shown


def test_a_relative_path_becomes_absolute() -> None:
    """A relative path is resolved where the command runs, since the hub runs elsewhere."""
    assert parse_store("./docs", env={}).path == f"{os.getcwd()}/docs"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "ftp://host/x",
        "http://",
        "http://host:0",
        "http://host:port",
        "http://host:99999",
        "http://host:1/only-tenant",
        "http://host:1/t/d/more",
        "http://host:1/t/..%2f..",
        "http://ho st:1",
        "http://[::1:1",
        "./a\0b",
        "./\udcff",
        f"http://user:{SECRET}@host:1",
        f"http://{SECRET}@host:1",
        f"http://host:1/?token={SECRET}",
        f"http://host:1/t/d#{SECRET}",
        f"http://host:{SECRET}/",
    ],
)
def test_nonsense_is_one_line_without_its_secrets(text: str) -> None:
    """What is no STORE is a usage error of one line, which does not repeat a secret put there."""
    with pytest.raises(UsageError) as caught:
        parse_store(text, env={})
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


@given(st.text())
def test_any_text_is_a_store_or_a_usage_error(text: str) -> None:
    """No text makes the parser fail in another way."""
    for candidate in (text, "http://" + text, "https://host:1/" + text):
        try:
            location = parse_store(candidate, env={})
        except UsageError:
            continue
        assert StoreLocation.from_json(json.loads(json.dumps(location.to_json()))) == location


@pytest.mark.parametrize(
    "name", ["", "ab", "-abc", "abc-", "a/b", "a b", "ä" * 4, "x" * 513, "../x"]
)
def test_a_wrong_collection_name_is_a_usage_error(name: str) -> None:
    """A name that Chroma would refuse is refused before anything is opened."""
    with pytest.raises(UsageError):
        parse_store("./x", collection=name, env={})


def test_tenant_and_database_come_from_url_then_environment() -> None:
    """The URL's names win over CHROMA_TENANT and CHROMA_DATABASE, which win over the defaults."""
    env = {"CHROMA_TENANT": "acme", "CHROMA_DATABASE": "handbook"}
    assert str(parse_store("http://h:1", env=env)) == "http://h:1/acme/handbook"
    assert str(parse_store("http://h:1/t/d", env=env)) == "http://h:1/t/d"
    embedded = parse_store("./x", env=env)
    assert (embedded.tenant, embedded.database) == ("default_tenant", "default_database")
    with pytest.raises(UsageError):
        parse_store("http://h:1", env={"CHROMA_TENANT": "a/b"})


def test_a_location_travels_as_json(tmp_path: Path) -> None:
    """A location sent to another process arrives equal, and names the token's file, not the token."""
    file = tmp_path / "token"
    file.write_text(SECRET)
    location = parse_store("https://h:1/t/d", collection="docs", token_file=file, env={})
    sent = json.dumps(location.to_json())
    assert StoreLocation.from_json(json.loads(sent)) == location
    assert SECRET not in sent + repr(location) + str(location)


def test_the_token_comes_from_file_then_environment(tmp_path: Path) -> None:
    """The token file wins over CHROMAFUSE_STORE_TOKEN, which wins over CHROMA_API_KEY."""
    file = tmp_path / "token"
    file.write_text("from-file\n")
    env = {"CHROMAFUSE_STORE_TOKEN": "ours", "CHROMA_API_KEY": "chroma's"}
    with_file = parse_store("https://h:1", token_file=file, env={})
    without = parse_store("https://h:1", env={})
    assert read_token(with_file, env) == "from-file"
    assert read_token(without, env) == "ours"
    assert read_token(without, {"CHROMA_API_KEY": "key"}) == "key"
    assert read_token(without, {"CHROMA_API_KEY": ""}) is None


@pytest.mark.parametrize(
    "content", ["", "\n", "two words", "two\nlines", "\x00", "umläut", "x" * 9_000]
)
def test_a_file_without_a_token_is_named(tmp_path: Path, content: str) -> None:
    """A token file that holds no token is an error that names the file, not its content."""
    file = tmp_path / "token"
    file.write_text(content)
    location = parse_store("https://h:1", token_file=file, env={})
    with pytest.raises(UserError) as caught:
        read_token(location, {})
    assert str(caught.value) == f"{file} holds no token: one line of printable ASCII is expected"


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    """A token file that cannot be read is an error with its name and the reason."""
    location = parse_store("https://h:1", token_file=tmp_path / "absent", env={})
    with pytest.raises(UserError) as caught:
        read_token(location, {})
    assert (
        str(caught.value)
        == f"cannot read the token file {tmp_path}/absent: No such file or directory"
    )


@pytest.mark.parametrize(
    ("store", "fine"),
    [
        ("https://elsewhere:8000", True),
        ("http://localhost:8000", True),
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000", True),
        ("http://elsewhere:8000", False),
        ("http://localhost.example:8000", False),
    ],
)
def test_a_token_never_travels_in_the_clear(store: str, fine: bool) -> None:
    """Over plain http a token goes to this machine only; the refusal does not show it."""
    env = {"CHROMA_API_KEY": SECRET}
    if fine:
        assert read_token(parse_store(store, env={}), env) == SECRET
        return
    with pytest.raises(UserError) as caught:
        read_token(parse_store(store, env={}), env)
    assert SECRET not in str(caught.value)
