"""The shims by themselves: how they are written, which tool they become, and how they look to it."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from chromafuse.errors import UserError
from chromafuse.search import shim, shims
from tests.support.program import PROGRAM, environment
from tests.support.shims import Shell

ECHO = '#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n'


@pytest.fixture(name="shell")
def shell_of_shims(tmp_path: Path) -> Shell:
    """Give a directory of shims."""
    return Shell(tmp_path / "shims")


def put(path: Path, text: str) -> Path:
    """Write a program."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


# -- writing


def test_shims_are_four_programs(tmp_path: Path) -> None:
    """All of one text, that runs without the environment and without site-packages."""
    shims.write_shims(tmp_path / "new" / "bin")
    found = sorted((tmp_path / "new" / "bin").iterdir())
    assert [path.name for path in found] == ["egrep", "fgrep", "grep", "rg"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o755}
    texts = {path.read_bytes() for path in found}
    assert texts == {b"#!/usr/bin/python3 -IS\n" + Path(shim.__file__).read_bytes()}
    assert shims.shebang("/nowhere/python3") == b"#!/usr/bin/env -S python3 -IS\n"


def test_shims_are_replaced_and_nothing_else(tmp_path: Path) -> None:
    """Ours are written again; where one name is somebody else's, nothing is written at all."""
    shims.write_shims(tmp_path)
    (tmp_path / "rg").write_bytes(b"#!/usr/bin/python3\n# " + shim.MARK)
    shims.write_shims(tmp_path)
    assert (tmp_path / "rg").read_bytes() == shims.text()
    (tmp_path / "rg").unlink()
    put(tmp_path / "grep", ECHO)
    with pytest.raises(UserError, match="grep is there and no shim"):
        shims.write_shims(tmp_path)
    assert (tmp_path / "grep").read_text() == ECHO
    assert not (tmp_path / "rg").exists()
    (tmp_path / "grep").unlink()
    (tmp_path / "grep").symlink_to(tmp_path / "egrep")
    with pytest.raises(UserError, match="no shim"):
        shims.write_shims(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["egrep", "fgrep", "grep"]


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    """`chromafuse shims` names what it wrote, and fails with one line."""
    (tmp_path / "file").touch()
    for place, code, said in (
        ("bin", 0, f"egrep, fgrep, grep, rg are in {tmp_path}/bin; put it first on PATH"),
        ("file", 1, f"{tmp_path}/file: File exists"),
    ):
        done = subprocess.run(
            [*PROGRAM, "shims", place],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, "", f"chromafuse: {said}\n")


def test_the_shim_is_small_and_imports_nothing() -> None:
    """It is compiled at every start, and has to run where there is no library."""
    text = Path(shim.__file__).read_text()
    imports = [line.split()[1] for line in text.splitlines() if line.strip().startswith("import ")]
    assert sorted(imports) == ["_signal", "os", "sys", "time"]
    assert len([line for line in text.splitlines() if line]) <= 320
    loaded = "import sys; print(*[name for name in ('_signal', 'time') if name in sys.builtin_module_names])"
    done = subprocess.run([sys.executable, "-IS", "-c", loaded], capture_output=True, text=True)
    assert done.stdout.split() == ["_signal", "time"]


# -- becoming the tool


@pytest.mark.parametrize("tool", shims.NAMES)
def test_a_shim_becomes_the_next_tool_on_the_path(shell: Shell, tmp_path: Path, tool: str) -> None:
    """The first program of its name that is no shim, with every argument as it came."""
    shims.write_shims(tmp_path / "more")
    put(tmp_path / "real" / tool, ECHO)
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / tool).mkdir()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / tool).touch()
    places = ["absent", "directory", "plain", "shims", "more", "real"]
    path = ":".join(str(tmp_path / place) for place in places)
    words = ["-e", "", "a b", b"\xff", "--", "-x"]
    ran = shell.shim([tool, *words], tmp_path, {"PATH": f"{path}:/usr/bin:/bin"})
    expected = [str(tmp_path / "real" / tool).encode(), *(os.fsencode(word) for word in words)]
    assert ran.output == (0, b"".join(word + b"\n" for word in expected), b"")
    assert ran.ways == (("plain", "no directory of a mount to ask"),)


def test_a_shim_under_another_path_is_one(shell: Shell, tmp_path: Path) -> None:
    """Links to a shim, and a shim that is not on PATH, all end at the real tool."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "grep").symlink_to(shell.directory / "grep")
    path = f"{tmp_path / 'links'}:{shell.directory}:{os.environ['PATH']}"
    for command in ("grep", shell.directory / "grep", tmp_path / "links" / "grep"):
        ran = shell.shim([str(command), "--version"], tmp_path, {"PATH": path})
        assert ran.stdout == shell.real("grep --version", tmp_path).stdout


def test_without_a_tool_it_is_as_without_a_shim(shell: Shell, tmp_path: Path) -> None:
    """Where the tool is missing, the shim ends as a shell does."""
    path = {"PATH": str(shell.directory)}
    ran = shell.shim([str(shell.directory / "rg"), "x"], tmp_path, path)
    assert ran.output == (127, b"", b"rg: command not found\n")


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"LANG": "C"},
        {"LANG": "xx_XX.UTF-8"},
        {"LC_ALL": "C"},
        {"LC_CTYPE": "C.UTF-8"},
        {"LANG": "C", "LC_CTYPE": "C.UTF-8"},
        {"LC_CTYPE": "C", "X": "1"},
        {"LC_ALL": "", "A": "=b"},
        {"LANG": "C.UTF-8", "LC_CTYPE": "C"},
        {"LC_CTYPE": ""},
    ],
)
def test_the_environment_comes_through(shell: Shell, tmp_path: Path, env: dict[str, str]) -> None:
    """The tool sees the environment of the caller, in the C locale too, where Python adds to it."""
    put(tmp_path / "real" / "grep", "#!/bin/sh\nexec env\n")
    given = {"PATH": f"{tmp_path / 'real'}:/usr/bin:/bin", **env}
    for program in (str(shell.directory / "grep"), str(tmp_path / "real" / "grep")):
        done = subprocess.run([program], env=given, capture_output=True, text=True, check=True)
        found = dict(line.split("=", 1) for line in done.stdout.splitlines())
        assert {name: found[name] for name in found if name not in ("PWD", "_", "SHLVL")} == given


def test_signals_come_through(shell: Shell, tmp_path: Path) -> None:
    """Python ignores some signals, and the tool must not: a closed pipe ends it as ever."""
    status = put(tmp_path / "real" / "grep", "#!/bin/sh\nexec sed -n /^Sig/p /proc/self/status\n")
    seen = []
    for program in (shell.directory / "grep", status):
        path = f"{tmp_path / 'real'}:/usr/bin:/bin"
        done = subprocess.run(
            [program], env={"PATH": path}, capture_output=True, text=True, check=True
        )
        seen.append(
            [line for line in done.stdout.splitlines() if line.startswith(("SigIgn", "SigBlk"))]
        )
    assert seen[0] == seen[1]
    big = tmp_path / "big"
    big.write_text("line\n" * 100_000)
    line = "grep line big | head -1; echo ${PIPESTATUS[0]}"
    assert shell.shim(line, tmp_path).output == shell.real(line, tmp_path).output
    assert str(128 + signal.SIGPIPE).encode() in shell.real(line, tmp_path).stdout


def test_descriptors_and_argument_zero_come_through(shell: Shell, tmp_path: Path) -> None:
    """The tool has the caller's descriptors and no other, and the name it was called by."""
    put(tmp_path / "real" / "grep", "#!/bin/sh\nls /proc/$$/fd\n")
    path = f"{tmp_path / 'real'}:/usr/bin:/bin"
    seen = [
        subprocess.run([program], env={"PATH": path}, capture_output=True, check=True).stdout
        for program in (shell.directory / "grep", tmp_path / "real" / "grep")
    ]
    assert seen[0] == seen[1]
    for line in ("grep", "grep x absent", "egrep -q", "fgrep", "rg", "grep --no-such"):
        assert shell.shim(line, tmp_path).output == shell.real(line, tmp_path).output


def test_standard_input_is_the_tools(shell: Shell, tmp_path: Path) -> None:
    """Nothing is read before the tool reads."""
    for line in (
        "printf 'a\\nb\\n' | grep -n b",
        "printf 'a\\nb\\n' | rg b",
        "grep -c '' < /etc/passwd",
    ):
        assert shell.shim(line, tmp_path).output == shell.real(line, tmp_path).output


# -- forgeries


class Deaf(shim.Mounts):
    """A place that has the name, and whose answer is `answer`."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def serves(self, directory: bytes) -> bool:
        return True

    def ask(self, directory: bytes, question: bytes, timeout: bytes) -> bytes:
        return self.answer


def fields(*parts: bytes) -> bytes:
    """Join fields as an answer does."""
    return b"".join(part + b"\0" for part in parts)


def planned(*names: bytes, option: bytes = b"x", lister: tuple[bytes, ...] = ()) -> bytes:
    """Return an answer that names files below the current directory."""
    candidates = (b"%d" % len(names), *names)
    return fields(
        *(b"plan", b"2", b"-e", option, b"0", b"0", b"1", b"-H"),
        *(b"%d" % len(lister), *lister, b"9", b"index"),
        *candidates,
        *(b"0", b"0", b"end"),
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "an answer without its end"),
        (b"\0" * 4096, "an answer without its end"),
        (b"end\0", "an answer without its end"),
        (fields(b"other", b"end"), ""),
        (fields(b"send", b"1", b"0", b"end"), ""),
        (fields(b"plan", b"7", b"end"), ""),
        (planned(b"../x"), "a name that is not below the directory"),
        (planned(b"a/../../x"), "a name that is not below the directory"),
        (planned(b"/etc/passwd"), "a name that is not below the directory"),
        (planned(b""), "a name that is not below the directory"),
        (planned(b"-"), "a name that is not below the directory"),
        (planned(b"a", option=b"--pre"), "an option that would run a program"),
        (planned(b"a", option=b"--pre=/x"), "an option that would run a program"),
        (planned(b"a", option=b"--hostname-bin=/x"), "an option that would run a program"),
        (planned(b"a", lister=(b"--pre=/x",)), "an option that would run a program"),
    ],
)
def test_garbage_is_no_answer(answer: bytes, why: str, tmp_path: Path) -> None:
    """What does not hold together, or leads out of the directory, is an exception, and the tool runs as called."""
    search = shim.Search("grep", b"/bin/grep", [b"-r", b"x"], {}, Deaf(answer))
    search.mounted = [b"/"]
    with pytest.raises(Exception, match=why or None) as caught:
        search.command()
    assert not isinstance(caught.value, AssertionError)


def test_a_whole_answer_is_believed() -> None:
    """The same answer with decent names becomes the command line."""
    search = shim.Search("grep", b"/bin/grep", [b"-r", b"x"], {}, Deaf(planned(b"a", b"b/c..")))
    search.mounted = [b"/"]
    assert search.command() == [b"-e", b"x", b"-H", b"--", b"a", b"b/c.."]
    search = shim.Search("grep", b"/bin/grep", [b"-r", b"x"], {}, Deaf(planned()))
    search.mounted = [b"/"]
    assert search.command() == [b"-e", b"x", b"-H", b"--", b"/dev/null"]


def test_a_forged_directory_is_not_believed(shell: Shell, tmp_path: Path) -> None:
    """Whoever makes a query directory in an ordinary one, whatever is in it, hides nothing."""
    site = tmp_path / "site"
    (site / ".chromafuse-query").mkdir(parents=True)
    (site / ".chromafuse-query" / "=1000").write_bytes(bytes(4096))
    (site / "a.md").write_text("needle\n")
    (site / ".chromafuse").mkdir()
    for line in ("grep -rn needle .", "rg -n needle", "grep -r needle", "grep -l needle a.md"):
        ran = shell.shim(line, site)
        assert ran.output == shell.real(line, site).output
        assert ran.status == 0
        assert not ran.filtered


def test_another_mount_below_is_seen(tmp_path: Path) -> None:
    """Whatever is mounted below an operand, by the mount table, is a reason to walk it all."""
    place = os.fsencode(tmp_path / "a b\\c\n")
    answer = shim.Answer(planned())
    search = shim.Search("grep", b"/bin/grep", [], {}, shim.Mounts())
    escaped = place.replace(b"\\", b"\\134").replace(b" ", b"\\040").replace(b"\n", b"\\012")
    for mounted, covered in (
        ([b"/"], False),
        ([escaped], False),
        ([escaped + b"x"], False),
        ([b"/", escaped + b"/x"], True),
    ):
        search.mounted = mounted
        assert search.is_covered(place, answer) is covered
    search.mounted = [b"/", b"/proc"]
    assert search.is_covered(b"/", answer)


def test_without_a_mount_table_every_directory_is_looked_at(tmp_path: Path) -> None:
    """A directory of another device or another number is not the one that the hub means."""
    (tmp_path / "d").mkdir()
    search = shim.Search("grep", b"/bin/grep", [], {}, shim.Mounts())
    search.mounted = []
    answer = shim.Answer(planned())
    inode = b"%d" % (tmp_path / "d").stat().st_ino
    for directories, covered in (([], False), ([inode, b"d"], False), ([b"1", b"d"], True)):
        answer.directories = directories
        assert search.is_covered(os.fsencode(tmp_path), answer) is covered
    answer.directories = [b"1", b"absent"]
    with pytest.raises(FileNotFoundError):
        search.is_covered(os.fsencode(tmp_path), answer)


@pytest.mark.skipif(not shutil.which("rg"), reason="ripgrep is not installed")
def test_the_real_rg_lists_the_files(tmp_path: Path) -> None:
    """Its names are taken as it spells them; a message, a status or no name at all is no listing."""
    (tmp_path / "a b.md").touch()
    search = shim.Search("rg", b"/usr/bin/rg", [], dict(os.environb), shim.Mounts())
    lister = [b"--files", b"--null", b"--"]
    place = os.fsencode(tmp_path)
    assert search.listed([*lister, place]) == [place + b"/a b.md"]
    for words in ([*lister, place + b"/absent"], [b"--no-such-option"]):
        with pytest.raises(shim.Plain, match="a listing with messages"):
            search.listed(words)
