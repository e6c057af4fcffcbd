"""Searches of real mounts by the shims: every byte is the real tool's on a plain copy, and most are filtered."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from chromafuse.search import shim
from chromafuse.search.plan import Request
from chromafuse.search.query import Question, encode_question
from tests.support.fake_hub import FakeHub
from tests.support.ingesting import write_tree
from tests.support.mounts import Running, foreground
from tests.support.program import PROGRAM, chromafuse, environment, ok
from tests.support.session import session_root
from tests.support.shims import Ran, Shell
from tests.support.view_process import mounted
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.mount]

FILLER = {f"filler/{n:02}.md": f"nothing much in {n}\n".encode() for n in range(30)}
SITE = {
    "index.md": b"# Start\nhow to install it\n",
    "guide/install.md": b"install first\nthen configure\ninstall again\n",
    "guide/usage.md": b"usage of the needle\r\nin CRLF\r\n",
    "guide/deep/er/page.md": b"deep needle without an end",
    "guide/name with blanks.md": b"Install (blanks)\n",
    "guide/a:b.md": b"install:colon\n",
    "guide/-dash.md": b"install dash\n",
    "reference/install.txt": b"install as text\n",
    "reference/long.md": b"x" * 10_000 + b" install " + b"y" * 10_000 + b"\n",
    "reference/empty.md": b"",
    "reference/unicode.md": "Größe, 中文, \u017ftraße needle\u212a\n".encode(),
    **FILLER,
}
ODD = SITE | {
    "odd/nul.md": b"install\0needle\n",
    "odd/bom.md": b"\xef\xbb\xbfinstall with a mark\n",
    "odd/utf16.md": "\ufeffinstall in UTF-16\n".encode("utf-16-le"),
    "odd/latin.md": b"install in Latin-1: \xe9\n",
    "odd/.hidden.md": b"install hidden\n",
}


_numbers = itertools.count(1000)


@dataclass(frozen=True)
class Place:
    """A site twice: mounted at `mount/site`, and copied at `copy/site`."""

    shell: Shell
    home: Path
    running: Running

    @property
    def mount(self) -> Path:
        return self.home / "mount"

    @property
    def copy(self) -> Path:
        return self.home / "copy"

    def both(self, line: str, below: str = ".", **env: str) -> tuple[Ran, Ran, Ran]:
        """Run a command line on the mount by the shims and by the real tools, and by these on the copy."""
        on_mount = line.replace("ROOT", str(self.mount))
        shim = self.shell.shim(on_mount, self.mount / below, env)
        real = self.shell.real(on_mount, self.mount / below, env)
        plain = self.shell.real(line.replace("ROOT", str(self.copy)), self.copy / below, env)
        moved = (text.replace(bytes(self.copy), bytes(self.mount)) for text in plain.output[1:])
        return shim, real, Ran(plain.status, *moved)


def start(stack: ExitStack, site: dict[str, bytes], *options: str) -> Place:
    """Publish and mount a site, and wait until searches are filtered."""
    home = Path(tempfile.mkdtemp(prefix="search-", dir=session_root()))
    home.chmod(0o755)
    (home / "mount").mkdir()
    source = write_tree(home / "copy" / "site", site)
    stored = chromafuse(
        home,
        *("ingest", source, home / "store", "--default-access", "public"),
        *("--include", "*", "--include", ".*"),
    )
    ok(stored)
    point = home / "mount" / "site"
    running = stack.enter_context(foreground(home, home / "store", point, *options))
    place = Place(Shell(home / "shims"), home, running)
    wait_until_filtered(place)
    return place


def wait_until_filtered(place: Place) -> None:
    """Wait until there is an index. Its build gives way to questions, and answers are remembered."""
    wait_for_index(place.home)
    wait_for(
        lambda: "index" in place.shell.shim(f"grep -r w{next(_numbers)} site", place.mount).why,
        what="a search is filtered by the index",
        timeout=30,
    )


def wait_for_index(home: Path) -> None:
    """Wait until an index is written."""
    indexes = home / "cache" / "chromafuse" / "index"
    wait_for(lambda: list(indexes.glob("*.index")), what="an index is written", timeout=60)


@pytest.fixture(scope="module", name="site")
def mounted_site() -> Iterator[Place]:
    """Give a mounted site of plain texts."""
    with ExitStack() as stack:
        yield start(stack, SITE)


@pytest.fixture(scope="module", name="odd")
def mounted_odd_site() -> Iterator[Place]:
    """Give a mounted site with pages that tools mind."""
    with ExitStack() as stack:
        yield start(stack, ODD, "--unrestricted")


FILTERED = [
    ("grep -r install site", "."),
    ("grep -rn install site", "."),
    ("grep -rn install site/", "."),
    ("grep -rn install site//", "."),
    ("grep -rn install ./site", "."),
    ("grep -rn install", "site"),
    ("grep -rn install .", "site"),
    ("grep -rn install ..", "site/guide"),
    ("grep -rn install ../guide ../reference", "site/guide"),
    ("grep -rn install deep ../reference/../filler", "site/guide"),
    ("grep -rn install ROOT/site", "."),
    ("grep -rn install ROOT/site/guide/deep", "site/reference"),
    ("grep -rl install site", "."),
    ("grep -rhi INSTALL site", "."),
    ("grep -rc needle site/guide && false || grep -rq needle site", "."),
    ("grep -rw install site | sort | head -3", "."),
    ("grep -rE 'needle|install' site", "."),
    ("grep -rF 'install (' site", "."),
    ("grep -rP 'inst\\w+ first' site", "."),
    ("grep -r -e needle -e absent site", "."),
    ("grep -rn --include='*.txt' install site", "."),
    ("grep -rn --exclude-dir=deep needle site", "."),
    ("grep -rn zebra site", "."),
    ("grep -rnZ zebra site; echo $?", "."),
    ("grep -rn install site absent", "."),
    ("grep -rn install site/index.md site/guide", "."),
    ("grep -rn install site /etc/hostname", "."),
    ("grep -rn -A1 -B1 then site", "."),
    ("grep -rnC3 --color=always install site", "."),
    ("grep -rm1 install site", "."),
    ("grep -rob install site", "."),
    ("grep -rz install site", "."),
    ("grep -rsn install site absent; echo $?", "."),
    ("grep -rn Größe site", "."),
    ("grep -rin strasse site; grep -rin größe site", "."),
    ("egrep -rn 'needle|install' site", "."),
    ("fgrep -rn install: site", "."),
    ("egrep -rn zebra", "site"),
    ("grep -n install guide/*.md reference/* index.md filler/*", "site"),
    ("grep -n install site/*/*.md", "."),
    ("grep -L nothing site/index.md; grep -rn install site", "."),
    (
        "printf 'needle\\ninstall' > /dev/null; grep -rf <(echo) x 2>/dev/null; grep -rn then site",
        ".",
    ),
    ("rg install site --sort path", "."),
    ("rg -n install --sort path", "site"),
    ("rg -l needle . --sort path", "site"),
    ("rg -j1 -l needle ..", "site/guide"),
    ("rg -i INSTALL site -c --sort path", "."),
    ("rg -tmd install site --sort path", "."),
    ("rg -g '*.txt' install site", "."),
    ("rg zebra site; echo $?", "."),
    ("rg --no-heading -n -C1 then site", "."),
    ("rg --json needle site >/dev/null; rg -F 'install (' site", "."),
    ("rg needle site/guide site/reference --sort path", "."),
    ("rg -n needle site/guide/deep ROOT/site/guide/usage.md -j1", "."),
    ("rg -w needle site --sort path", "."),
]
PLAIN = [
    ("grep -rvn nothing site", "."),
    ("grep -rL install site", "."),
    ("grep -rc install site", "."),
    ("grep -rn '' site", "."),
    ("grep -rn x site", "."),
    ("grep -rn install site <<< x", "."),
    ("grep -n install site", "."),
    ("grep -n install < site/index.md", "."),
    ("echo install | grep -n install -", "site"),
    ("grep -rn nothing site", "."),
    ("grep -rn install site/absent", "."),
    ("grep install site/index.md", "."),
    ("grep -rn install ROOT/../copy/site", "."),
    ("grep -rn install site ../copy/site/guide", "."),
    ("grep -rn 'a\\(' site", "."),
    ("grep --help | head -2", "site"),
    ("rg -v nothing site --sort path", "."),
    ("echo install | rg install", "site"),
    ("rg -u --files site --sort path", "."),
    ("rg '' site --sort path", "."),
    ("rg install ../copy/site --sort path", "."),
    ("rg 'a(' site", "."),
]


def in_order(ran: Ran) -> tuple[int, list[bytes], list[bytes]]:
    """Return an output with its lines in order, for trees whose listings have another one."""
    out, err = (sorted(re.split(rb"[\0\n]", text)) for text in ran.output[1:])
    return ran.status, out, err


def same(found: tuple[Ran, Ran, Ran]) -> Ran:
    """Demand that all did the same, on the copy in the order of its own listings; return what the shim did."""
    shim, real, plain = found
    assert shim.output == real.output, shim.ways
    assert in_order(real) == in_order(plain)
    assert shim.ways
    return shim


@pytest.mark.parametrize(("line", "below"), FILTERED)
def test_filtered_searches_are_the_real_tools(site: Place, line: str, below: str) -> None:
    """Stdout, stderr and status to the byte; and the tool looked at a part of the pages."""
    shim = same(site.both(line, below))
    if "copy" not in line and "etc" not in line:
        assert shim.filtered, shim.ways


@pytest.mark.parametrize(("line", "below"), PLAIN)
def test_other_searches_are_the_real_tools(site: Place, line: str, below: str) -> None:
    """What cannot be filtered runs as it came."""
    shim = same(site.both(line, below))
    assert shim.ways[-1][0] == "plain" or line.endswith("<<< x"), shim.ways


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX", "xx_XX.UTF-8", ""])
@pytest.mark.parametrize(
    "line", ["grep -rn install site", "grep -rin STRASSE site", "rg -n \u017f site"]
)
def test_locales_are_the_tools(odd: Place, line: str, locale: str) -> None:
    """The locale is the caller's, set in any way; where it is C, binary files are others."""
    for env in ({"LC_ALL": locale}, {"LC_ALL": "", "LANG": locale, "LC_CTYPE": ""}):
        same(odd.both(f"{line} --sort path" if line.startswith("rg") else line, **env))


@pytest.mark.parametrize(
    ("line", "filtered"),
    [
        ("grep -rn install site", True),
        ("grep -rn needle site", True),
        ("grep -ran install site", True),
        ("grep -rl zebra site", True),
        ("grep -rc zebra site", False),
        ("grep -rUn install site", True),
        ("grep -rn $'\\xe9' site", False),
        ("rg -n install site --sort path", False),
        ("rg -n install site/guide --sort path", True),
        ("rg -n --hidden install site --sort path", False),
        ("rg -n zebra site -g '!nul.md' -g '!utf16.md'", True),
    ],
)
def test_odd_pages_are_the_real_tools(odd: Place, line: str, filtered: bool) -> None:
    """NUL, marks, UTF-16, Latin-1, hidden names: as the real tool has them."""
    assert same(odd.both(line)).filtered is filtered


def test_patterns_come_from_files(site: Place) -> None:
    """A file of patterns is read for the question, and again by the tool."""
    patterns = site.home / "patterns"
    patterns.write_text("needle\nagain\n")
    assert same(site.both(f"grep -rnf {patterns} site")).filtered
    assert same(site.both(f"rg -nf {patterns} site --sort path")).filtered
    patterns.write_bytes(b"needle\0\n")
    assert not same(site.both(f"grep -rnf {patterns} site")).filtered
    patterns.write_text("needle\n" * 5_000)
    assert not same(site.both(f"grep -rnf {patterns} site")).filtered
    for absent in ("absent", "/dev/null", "<(echo needle)"):
        same(site.both(f"grep -rnf {absent} site"))


def test_links_and_bind_mounts_lead_there(site: Place) -> None:
    """A link to the mount, a bind mount of a directory of it, and paths through both are filtered."""
    bound, link = site.home / "bound", site.home / "link"
    copied = site.home / "copied"
    bound.mkdir()
    link.symlink_to(site.mount / "site")
    copied.symlink_to(site.copy / "site")
    subprocess.run(["mount", "--bind", site.mount / "site" / "guide", bound], check=True)
    try:
        for line, place, plain in (
            ("grep -rn install .", bound, site.copy / "site" / "guide"),
            ("grep -rn needle deep/er/..", bound, site.copy / "site" / "guide"),
            ("rg -n install --sort path", bound, site.copy / "site" / "guide"),
        ):
            shim, real = site.shell.shim(line, place), site.shell.real(line, plain)
            assert (in_order(shim), shim.filtered) == (in_order(real), True), shim.ways
        for name in (
            "grep -rn install NAME",
            "grep -rn install NAME/guide/",
            "rg -j1 install NAME",
        ):
            shim = site.shell.shim(name.replace("NAME", "link"), site.home)
            real = site.shell.real(name.replace("NAME", "link"), site.home)
            plain = site.shell.real(name.replace("NAME", "copied"), site.home)
            moved = Ran(plain.status, plain.stdout.replace(b"copied/", b"link/"), plain.stderr)
            assert same((shim, real, moved)).filtered
    finally:
        subprocess.run(["umount", bound], check=True)
        link.unlink()
        copied.unlink()


def test_another_mount_below_is_looked_into(site: Place) -> None:
    """Where something else is mounted in a directory of ours, the tool walks it all."""
    below = site.mount / "site" / "guide"
    subprocess.run(["mount", "-t", "tmpfs", "none", below], check=True)
    try:
        (below / "new.md").write_text("needle in a haystack\n")
        ran = site.shell.shim("grep -rn needle site", site.mount)
        assert ran.output == site.shell.real("grep -rn needle site", site.mount).output
        assert b"new.md" in ran.stdout
        assert ran.why == "something else is mounted below"
        assert site.shell.shim("grep -rn needle site/reference", site.mount).filtered
    finally:
        subprocess.run(["umount", below], check=True)


def test_two_mounts_are_searched_at_once(site: Place, odd: Place) -> None:
    """Each is asked for its own part; together they are one run."""
    line = "grep -rn install {0}/site/guide {1}/site/odd"
    shim = site.shell.shim(line.format(site.mount, odd.mount), site.home)
    real = site.shell.real(line.format(site.mount, odd.mount), site.home)
    assert (shim.output, shim.filtered) == (real.output, True)
    assert b"odd/bom.md" in shim.stdout


def test_one_question_has_many_readers(site: Place) -> None:
    """Shims at once, of one question and of several, all see the whole."""
    path = f"{site.shell.directory}:{os.environ['PATH']}"
    words = ["needle", "install", "needle", "zebra"] * 5
    running = [
        subprocess.Popen(
            ["grep", "-rn", word, "site"],
            cwd=site.mount,
            env={"PATH": path, "LC_ALL": "C.UTF-8"},
            stdout=subprocess.PIPE,
        )
        for word in words
    ]
    for word, one in zip(words, running, strict=True):
        found, _ = one.communicate(timeout=60)
        assert found == site.shell.real(["grep", "-rn", word, "site"], site.mount).stdout


def test_the_command_is_a_shim(site: Place) -> None:
    """`chromafuse grep` runs the same, says on request which way it went, and ends as the tool does."""
    for words in (
        ["grep", "-rn", "needle", "site"],
        ["rg", "-c", "needle", "site", "--sort", "path"],
    ):
        for explain in ([], ["--explain"]):
            done = subprocess.run(
                [*PROGRAM, words[0], *explain, *words[1:]],
                cwd=site.mount,
                env={**environment(site.home), "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            real = site.shell.real(words, site.mount)
            assert (done.returncode, done.stdout) == (real.status, real.stdout)
            said = rb"chromafuse: filtered: 3 of 41 pages \(index\); [\d.]+ ms of CPU\n"
            assert re.fullmatch(said if explain else b"", done.stderr)


def test_too_many_files_for_a_command_line(site: Place) -> None:
    """Where the list does not fit, the arguments run as they came."""
    line = f"ulimit -s 256; export FILL={'x' * 60_000}; grep -rn install site"
    assert same(site.both(line)).filtered
    many = " ".join(["site/guide"] * 1200)
    ran = same(site.both(f"ulimit -s 512; export FILL={'x' * 30_000}; grep -rn install {many}"))
    assert [way for way, _ in ran.ways] == ["filtered", "plain"]
    assert "Argument list too long" in ran.why


def test_sandboxes_hold_nothing_but_the_mount_and_the_shims(site: Place) -> None:
    """In a sandbox with a bind mount, the shims, python3 and the tools, without /proc, searches are filtered."""
    for source in (site.mount / "site", site.copy / "site"):
        assert source.is_dir()
    outputs = []
    for source, shims in ((site.mount, site.shell.directory), (site.copy, Path("/nonexistent"))):
        sandbox = [
            "bwrap",
            "--unshare-all",
            "--ro-bind",
            "/usr",
            "/usr",
            "--symlink",
            "usr/lib",
            "/lib",
        ]
        sandbox += [
            "--symlink",
            "usr/lib64",
            "/lib64",
            "--symlink",
            "usr/bin",
            "/bin",
            "--dev",
            "/dev",
        ]
        sandbox += [
            "--ro-bind",
            str(source / "site"),
            "/docs",
            "--ro-bind-try",
            str(shims),
            "/shims",
        ]
        sandbox += ["--chdir", "/docs", "--clearenv", "--setenv", "PATH", "/shims:/usr/bin"]
        sandbox += ["--setenv", "CHROMAFUSE_EXPLAIN", "1", "bash", "-c"]
        for line in (
            "grep -rn install",
            "rg -n install guide --sort path",
            "grep -rn needle /docs",
        ):
            done = subprocess.run(
                [*sandbox, line], stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
            outputs.append(Ran(done.returncode, done.stdout, b""))
            assert done.stderr.startswith(b"chromafuse: filtered") is (source == site.mount), (
                done.stderr
            )
    assert [in_order(ran) for ran in outputs[:3]] == [in_order(ran) for ran in outputs[3:]]


QUESTIONS = (
    Request("grep", (b"-rn", b"needle")),
    Request("grep", (b"-rn", b"install", b"secret.md", b"index.md", b"guide/usage.md", b".")),
    Request("grep", (b"-rn", b"nothing much")),
    Request("egrep", (b"-r", b"--include=*.md", b"needle|install")),
    Request("rg", (b"-n", b"needle")),
    Request("rg", (b"-v", b"needle")),
)


def answers(site: dict[str, bytes], point: Path, home: Path) -> list[bytes]:
    """Return the bytes of every answer that an anonymous reader of a site gets, mounted at `point`."""
    home.mkdir()
    source = write_tree(home / "source", site)
    ok(chromafuse(home, "ingest", source, home / "store", "--default-access", "public"))
    found = []
    with foreground(home, home / "store", point):
        wait_for_index(home)
        place = os.fsencode(point)
        wait_for(lambda: b"index" in shim.Mounts().ask(place, first(), b"5000"), what="it is used")
        for directory in (b".", b"guide", b"guide/deep/er"):
            for request in QUESTIONS:
                question = encode_question(Question(request, b".", whole=True))
                found.append(shim.Mounts().ask(place + b"/" + directory, question, b"5000"))
    return found


def first() -> bytes:
    """Return a question that nobody asked before."""
    return encode_question(Question(Request("grep", (b"-r", b"w%d" % next(_numbers))), b"."))


def test_hidden_pages_change_no_byte_of_an_answer(mount_root: Path) -> None:
    """Two sites that differ only in what an anonymous reader may not see answer every question alike."""
    secret = b"---\ngroups: [secret]\n---\nneedle, install, nothing much\n"
    hidden = {f"{path}.md": secret for path in ("secret", "guide/a", "guide/deep/er/zz", "new/x")}
    binary = {"guide/deep/nul.md": secret + b"\0", "filler/99/x.md": secret}
    seen = [
        answers(site, mount_root / "m", mount_root / f"home{number}")
        for number, site in enumerate((SITE, SITE | hidden | binary))
    ]
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > len(QUESTIONS)


# -- what can be wrong


def test_a_hub_that_hangs_or_is_gone_hides_nothing(mount_root: Path) -> None:
    """A stopped hub costs a second; a dead one is replaced; what the kernel has is searched meanwhile."""
    with ExitStack() as stack:
        place = start(stack, SITE)
        line = "grep -rn install site"
        same(place.both("grep -rn nothing site"))  # the kernel has read every page
        hub = place.running.status()["hub_pid"]
        os.kill(hub, signal.SIGSTOP)
        try:
            assert same(place.both(line)).why != ""
            assert not same(place.both(line, CHROMAFUSE_TIMEOUT="100")).filtered
        finally:
            os.kill(hub, signal.SIGKILL)
        same(place.both(line))
        wait_until_filtered(place)
        same(place.both(line))


def test_a_mount_that_is_gone_is_the_tools_error(mount_root: Path) -> None:
    """Where the view is dead, the shim and the tool say the same."""
    with ExitStack() as stack:
        place = start(stack, SITE)
        view = place.running.status()["view_pid"]
        os.kill(view, signal.SIGKILL)
        place.running.wait()
        for line in ("grep -rn install site", "rg -n install site"):
            shim = place.shell.shim(line, place.mount)
            assert shim.output == place.shell.real(line, place.mount).output
            assert not shim.filtered
        ok(chromafuse(place.home, "umount", place.mount / "site"))
        with_nothing = place.shell.shim("grep -rn install site", place.mount)
        assert with_nothing.output == (1, b"", b"")


@pytest.mark.parametrize(
    "answer", [b"", b"\0" * 5000, b"plan\0end\0", b"\xff" * 300, b"send\0001\0001\0/\0end\0"]
)
def test_a_hub_that_answers_garbage_hides_nothing(mount_root: Path, answer: bytes) -> None:
    """What a hub says is believed only if it holds together."""
    pages = {"a.md": b"needle\n", "d/b.md": b"needle\n"}
    shell = Shell(mount_root / "shims")
    copy = write_tree(mount_root / "copy", pages)
    with mounted(FakeHub(pages, answer=answer), mount_root / "site"):
        for line in ("grep -rn needle", "rg -n needle --sort path", "grep -rn needle d"):
            ran = shell.shim(line, mount_root / "site")
            assert ran.output == shell.real(line, copy).output
            assert not ran.filtered
