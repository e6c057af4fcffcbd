"""The command line as such: words, exit codes, and how every kind of end looks."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from chromafuse import __version__, cli, commands, mountcommand, outcome, storeargs
from chromafuse.errors import StoreMissing, UsageError, UserError
from chromafuse.model.access import Identity, Kind
from tests.support import damage
from tests.support.mounts import small_store  # noqa: F401
from tests.support.program import PROGRAM, chromafuse, environment, ok

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ["grep", "rg"]  # whose arguments are the tool's own
COMMANDS = ["export", "ingest", "mount", "shims", "status", "umount", "verify"]


def parse(*words: str) -> argparse.Namespace:
    """Parse a command line as `main` does."""
    return cli._parser(words[0]).parse_args(words)


def test_the_version_is_told(tmp_path: Path) -> None:
    """--version prints name and version, and nothing else."""
    assert ok(chromafuse(tmp_path, "--version")) == f"chromafuse {__version__}\n"


def test_without_words_there_is_help(tmp_path: Path) -> None:
    """A bare `chromafuse` prints its help and exits 2; --help prints the same and exits 0."""
    bare, asked = chromafuse(tmp_path), chromafuse(tmp_path, "--help")
    assert (bare.returncode, asked.returncode) == (2, 0)
    assert bare.stdout == asked.stdout
    assert (bare.stderr, asked.stderr) == ("", "")
    assert sorted(re.findall(r"^    (\w+)  ", asked.stdout, re.MULTILINE)) == sorted(
        COMMANDS + TOOLS
    )


def test_commands_are_those_that_exist() -> None:
    """There is no command of a later time."""
    assert sorted(commands.COMMANDS) == sorted(COMMANDS + TOOLS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(tmp_path: Path, command: str) -> None:
    """`COMMAND --help` succeeds and says what the command does."""
    said = ok(chromafuse(tmp_path, command, "--help"))
    assert commands.COMMANDS[command].help in said


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_has_its_own_help(tmp_path: Path, tool: str) -> None:
    """`chromafuse grep --help` is what `grep --help` says, and so is every exit code."""
    own = subprocess.run([tool, "--help"], capture_output=True, text=True, check=True)
    assert ok(chromafuse(tmp_path, tool, "--help")) == own.stdout
    assert chromafuse(tmp_path, tool, "--no-such-option").returncode == 2


def test_help_loads_nothing_slow(tmp_path: Path) -> None:
    """Neither help nor status waits for an event loop, a store or a terminal library."""
    code = (
        "import sys; from chromafuse.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    for words in (["--help"], ["mount", "--help"], ["status"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=True,
        )
        loaded = set(done.stderr.split())
        assert loaded & {"trio", "rich", "httpx", "chromadb", "pyfuse3", "orjson", "yaml"} == set()


@pytest.mark.parametrize(
    ("words", "identity"),
    [
        ([], Identity()),
        (["--authenticated"], Identity(Kind.AUTHENTICATED)),
        (["--group", "a"], Identity(Kind.AUTHENTICATED, frozenset("a"))),
        (["--group", "a", "--group", "b"], Identity(Kind.AUTHENTICATED, frozenset("ab"))),
        (["--authenticated", "--group", "a"], Identity(Kind.AUTHENTICATED, frozenset("a"))),
        (["--unrestricted"], Identity(Kind.UNRESTRICTED)),
    ],
)
@pytest.mark.parametrize("command", ["mount", "export"])
def test_identities(command: str, words: list[str], identity: Identity) -> None:
    """No option is anonymous, a group implies a login, and the operator is named."""
    assert storeargs.identity_of(parse(command, "s", "t", *words)) == identity


@pytest.mark.parametrize(
    "words",
    [["--unrestricted", "--group", "a"], ["--unrestricted", "--authenticated"], ["--group", ""]],
)
def test_one_identity_only(words: list[str]) -> None:
    """Two kinds of identity, and a group without a name, are usage errors."""
    with pytest.raises(UsageError):
        storeargs.identity_of(parse("mount", "s", "t", *words))


@pytest.mark.parametrize(
    ("options", "allow_other"),
    [
        ([], False),
        (["ro"], False),
        (["allow_other,ro"], True),
        (["defaults,_netdev,noauto", "user,nofail,noexec,nodev,nosuid,noatime"], False),
        (["x-systemd.automount,x-gvfs-hide,comment=a b"], False),
    ],
)
def test_words_of_mount(options: list[str], allow_other: bool) -> None:
    """allow_other counts, what mount(8) itself means is ignored."""
    assert mountcommand._mount_options(options) is allow_other


@pytest.mark.parametrize(
    "option", ["rw", "suid", "dev", "exec", "uid=0", "", "ro,,ro", "ALLOW_OTHER"]
)
def test_other_words_are_refused(option: str) -> None:
    """What this mount cannot be is a usage error, never ignored."""
    with pytest.raises(UsageError):
        mountcommand._mount_options([option])


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_command_lines(command: str) -> None:
    """Every example in the help is one that the parser takes."""
    for example in commands.COMMANDS[command].examples:
        name, *words = example.partition(" |")[0].split()
        assert (name, parse(*words).command) == ("chromafuse", command)


# -- ends


def fails_with(*exceptions: BaseException) -> tuple[int, str]:
    """Return what becomes of a command that ends so."""

    def run() -> int:
        if len(exceptions) == 1:
            raise exceptions[0]
        raise BaseExceptionGroup("several", exceptions)

    return outcome.outcome_of(run)


def test_a_users_mistake_is_a_line() -> None:
    """The line and the exit code are the error's own, also out of a group."""
    assert fails_with(UserError("no")) == (1, "no")
    assert fails_with(UsageError("no")) == (2, "no")
    assert fails_with(BaseExceptionGroup("", [UserError("no")])) == (1, "no")
    assert fails_with(KeyboardInterrupt()) == (130, "")
    assert fails_with(UserError("no"), KeyboardInterrupt()) == (130, "")


def test_a_bug_is_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else is shown whole, also when a user's mistake came with it."""
    assert fails_with(KeyError("x"), UserError("no")) == (1, "")
    assert "KeyError: 'x'" in capsys.readouterr().err
    assert fails_with(StoreMissing("unexplained")) == (1, "")
    assert "StoreMissing: unexplained" in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    """A broken pipe ends a command without a word."""
    done = subprocess.run(
        ["sh", "-c", '{ sleep 0.3; exec "$@"; } | true; :', "sh", *PROGRAM, "--help"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


@pytest.mark.chroma
def test_verify_reports(tmp_path: Path, store: Path) -> None:
    """`verify` of a whole store says so, and exits 0; --json holds all of it."""
    assert re.fullmatch(
        r"generation 1: 4 pages, 3 chunks, \d+ bytes right; 0 old records, 0 not ours\n",
        ok(chromafuse(tmp_path, "verify", store)),
    )
    report = json.loads(ok(chromafuse(tmp_path, "verify", store, "--json")))
    assert (report["ok"], report["pages"], report["problems"]) == (True, 4, [])


@pytest.mark.chroma
def test_verify_shows_progress_on_a_terminal(tmp_path: Path, store: Path) -> None:
    """On a terminal there is a bar while pages are read; a pipe gets the report alone."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [*PROGRAM, "verify", str(store)],
            env=environment(tmp_path) | {"TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("generation 1: 4 pages")
        assert b"reading pages" in os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.chroma
def test_the_way_out_of_damage_is_true(tmp_path: Path, store: Path) -> None:
    """What `verify` advises mends: lost chunks by the next ingest, wrong bytes in another collection."""
    source = store.parent / "source"
    ingest = ["ingest", source, "--default-access", "public"]
    for harm, where in (
        (damage.lose_chunks, ["--collection", "docs"]),
        (damage.change_chunk, ["--collection", "anew"]),
    ):
        home = tmp_path / harm.__name__
        home.mkdir()
        harmed = damage.damaged(store, home, harm)
        assert chromafuse(home, "verify", harmed).returncode == 1
        ok(chromafuse(home, *ingest, harmed, *where))
        ok(chromafuse(home, "verify", harmed, *where))


def test_ctrl_c_is_130(tmp_path: Path) -> None:
    """An interrupted command exits as shells expect, without a traceback."""
    code = (
        "import signal, os\nfrom chromafuse import outcome\nimport sys\n"
        "sys.exit(outcome.outcome_of(lambda: os.kill(os.getpid(), signal.SIGINT) or 0)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path), capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")


# -- the unit


def test_the_unit_starts_what_exists() -> None:
    """The unit's command line is one that the parser takes, with every variable replaced."""
    unit = (ROOT / "systemd" / "chromafuse@.service").read_text()
    starts = re.findall(r"^Exec\w+=/usr/bin/env chromafuse (.*)$", unit, re.MULTILINE)
    assert len(starts) == 1
    words = starts[0].replace("${STORE}", "./s").replace("${MOUNTPOINT}", "/m")
    args = parse(*words.replace("$OPTIONS", "--group billing --allow-other").split())
    assert (args.command, args.store, args.mountpoint, args.daemon) == ("mount", "./s", "/m", False)
    assert "\nType=notify\n" in unit
    assert "\nRestartPreventExitStatus=2\n" in unit


def test_the_console_script_is_this_main() -> None:
    """The installed command and `python -m chromafuse` are one function."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"chromafuse": "chromafuse.cli:main"}


def test_an_empty_source_is_not_the_current_directory(tmp_path: Path) -> None:
    """`ingest "$UNSET" STORE` publishes nothing: an empty SRC is a usage error, and no store is made."""
    done = chromafuse(tmp_path, "ingest", "", tmp_path / "store")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "chromafuse: SRC is empty; name a directory\n"
    assert not (tmp_path / "store").exists()
