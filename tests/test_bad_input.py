"""What goes wrong, and what a person then reads: one table, a row a case.

Each row holds the exact line on stderr, the exit code and what is mounted afterwards. {home}, {point} and
{store} stand for the paths of the case; no process of ours and no file of the runtime directory is left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import damage, reach
from tests.support.chroma_server import ChromaServer
from tests.support.mounts import layers_at, small_store  # noqa: F401
from tests.support.program import PROGRAM, environment, mounted
from tests.support.quota_proxy import running_proxy
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.mount, pytest.mark.chroma]

WHERE = "{store}, collection docs: "


@dataclass
class Scene:
    """Where a case plays. `arrange` functions change it."""

    home: Path
    point: Path
    store: Path
    env: dict[str, str] = field(default_factory=dict)
    prefix: list[str] = field(
        default_factory=list
    )  # of the command: another user, another namespace

    def fill(self, text: str) -> str:
        """Put this scene's paths into a text."""
        return text.format(home=self.home, point=self.point, store=self.store)


Arrange = Callable[[Scene], None]


@dataclass(frozen=True)
class Case:
    """One row."""

    name: str
    command: str  # words of the command line, by blanks
    says: str
    code: int = 1
    arrange: Arrange = lambda scene: None
    after: tuple[str, ...] = ()  # types mounted at the mountpoint


# -- arrangements


def no_point(scene: Scene) -> None:
    """The mountpoint does not exist."""
    scene.point.rmdir()


def file_point(scene: Scene) -> None:
    """The mountpoint is a file."""
    scene.point.rmdir()
    scene.point.write_text("x")


def full_point(scene: Scene) -> None:
    """Something lies in the mountpoint."""
    (scene.point / "x").touch()


def harmed(harm: damage.Harm) -> Arrange:
    """The store has something wrong in it."""

    def arrange(scene: Scene) -> None:
        scene.store = damage.damaged(scene.store, scene.home, harm)

    return arrange


def config(text: str) -> Arrange:
    """There is a configuration file."""

    def arrange(scene: Scene) -> None:
        (scene.home / "c.toml").write_text(text)

    return arrange


def no_device(scene: Scene) -> None:
    """There is no /dev/fuse: a /dev of our own in a mount namespace of our own."""
    scene.prefix = _namespace(
        "mkdir $1/dev; mount -t tmpfs none $1/dev;"
        "mknod -m 666 $1/dev/null c 1 3; mknod -m 666 $1/dev/urandom c 1 9; mount --bind $1/dev /dev",
        scene,
    )


def as_user(scene: Scene, device_mode: str = "666", commands: str = ":") -> None:
    """An ordinary user to whom /dev/fuse is open, and an empty /etc/fuse.conf."""
    scene.store = Path(shutil.copytree(scene.store, scene.home / "store"))
    namespace = _namespace(
        f"{reach.opened()}; mkdir $1/n; mount -t tmpfs none $1/n; chmod 755 $1/n;"
        f"mknod -m {device_mode} $1/n/fuse c 10 229; mount --bind $1/n/fuse /dev/fuse;"
        f"touch $1/n/conf; [ ! -e /etc/fuse.conf ] || mount --bind $1/n/conf /etc/fuse.conf; {commands}",
        scene,
    )
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    scene.prefix = [*namespace, *user]


def no_right(scene: Scene) -> None:
    """An ordinary user to whom /dev/fuse is closed."""
    as_user(scene, "600")


def confined(scene: Scene) -> None:
    """fusermount3 may not mount at this place, as AppArmor has it."""
    script = scene.home / "fusermount3"
    script.write_text(
        "#!/bin/sh\necho 'fusermount3: mount failed: Permission denied' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    as_user(scene, commands="mount --bind $1/fusermount3 $(command -v fusermount3)")


def no_fusermount(scene: Scene) -> None:
    """fusermount3 is not installed."""
    as_user(scene)
    (scene.home / "bin").mkdir()
    scene.prefix += ["env", f"PATH={scene.home / 'bin'}"]


def _give_away(scene: Scene) -> None:
    for place in (scene.home, *scene.home.rglob("*"), scene.point):
        os.chown(place, 65534, 65534)
    (scene.point.parent).chmod(0o755)


def _namespace(commands: str, scene: Scene) -> list[str]:
    script = f'{commands}; shift; exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh", str(scene.home)]


# -- the table

USAGE = [
    Case("no such command", "frob",
         "there is no command 'frob'; see `chromafuse --help`", 2),
    Case("no mountpoint given", "mount {store}",
         "the following arguments are required: MOUNTPOINT; see `chromafuse mount --help`", 2),
    Case("a flag that does not exist", "mount {store} {point} --frob",
         "unrecognized arguments: --frob; see `chromafuse mount --help`", 2),
    Case("two kinds of identity", "mount {store} {point} --unrestricted --group a",
         "--unrestricted goes with neither --authenticated nor --group", 2),
    Case("an option no mount here can have", "mount {store} {point} -o ro,suid",
         "-o suid: not an option of this mount", 2),
    Case("a name that is no store", "mount handbook {point}",
         "'handbook' is not a store: give a directory (./handbook), http(s)://host:port, or a name from the "
         "configuration file (it has: none)", 2),
    Case("a log file in the foreground", "mount {store} {point} --log-file x",
         "--log-file goes with --daemon; in the foreground the log is stderr", 2),
    Case("an unknown key", "mount {store} {point} --config {home}/c.toml",
         "{home}/c.toml: unknown key stores.a.tokn; known are url, collection, token_file, rows_per_call", 2,
         config('[stores.a]\nurl = "/x"\ntokn = "y"\n')),
    Case("no configuration file", "mount {store} {point} --config {home}/c.toml",
         "there is no configuration file {home}/c.toml; check --config", 2),
    Case("a malformed name of a collection", "verify {store} --collection /",
         "'/' is no name of a collection: 3 to 512 letters, digits, '.', '_' or '-', the first and the last a "
         "letter or digit", 2),
]  # fmt: skip

MOUNTPOINTS = [
    Case("missing", "mount {store} {point}",
         "there is no directory {point}; make it: mkdir -p {point}", arrange=no_point),
    Case("a file", "mount {store} {point}",
         "{point} is not a directory; choose an empty directory", arrange=file_point),
    Case("not empty", "mount {store} {point}",
         "{point} is not empty; choose an empty directory, a mount would hide what is in it",
         arrange=full_point),
    Case("another mount", "mount {store} /proc",
         "/proc: a file system is mounted there already (proc); choose another mountpoint"),
    Case("not mounted", "umount {point}",
         "{point} is not mounted; `chromafuse status` lists the mounts"),
    Case("not ours", "umount /proc",
         "/proc is a mount of proc, not of chromafuse; `chromafuse status` lists the mounts"),
    Case("no status", "status {point}",
         "{point} is no mount of chromafuse; `chromafuse status` lists the mounts"),
    Case("no /dev/fuse", "mount {store} {point}",
         "there is no /dev/fuse; load the kernel module (modprobe fuse), or give the container the device "
         "(--device /dev/fuse)", arrange=no_device),
    Case("no fusermount3", "mount {store} {point}",
         "fusermount3 is missing; install the package fuse3", arrange=no_fusermount),
    Case("no user_allow_other", "mount {store} {point} --allow-other",
         "--allow-other needs a line `user_allow_other` in /etc/fuse.conf, or root",
         arrange=as_user),
    Case("AppArmor refuses", "mount {store} {point}",
         "{point}: the system refuses a FUSE mount there; AppArmor's profile of fusermount3 (Ubuntu 25.04 and "
         "later) allows $HOME, $XDG_RUNTIME_DIR, /mnt, /media and /tmp; a container needs --cap-add SYS_ADMIN",
         arrange=confined),
    Case("no right to /dev/fuse", "mount {store} {point}",
         "this user may not open /dev/fuse: run as root, or give access (`chmod 666 /dev/fuse`)",
         arrange=no_right),
    Case("no log", "mount {store} {point} --daemon --log-file {home}/no/log",
         "cannot write the log file {home}/no/log: No such file or directory"),
]  # fmt: skip

NO_STORE = (
    "{home}/no, collection docs: it is not a Chroma directory (no chroma.sqlite3 in it); check the "
    "path, or make the store with `chromafuse ingest SRC {home}/no`"
)
NO_COLLECTION = (
    "{store}, collection other: it has no collection 'other'; check --collection, or fill it with "
    "`chromafuse ingest`"
)
UNREACHABLE = (
    "http://127.0.0.1:1/default_tenant/default_database, collection docs: Connection refused; "
    "check that the store is running and the "
    "address is right"
)
NO_TREE = (
    WHERE + "1 of the path tree's 1 parts are missing; publish a new tree: "
    "`chromafuse ingest SRC {store} --max-delete 100%`"
)
STORES = [
    case
    for command in ("mount {} {{point}}", "verify {}", "export {} {{home}}/copy")
    for case in (
        Case(f"{command.split()[0]}: no store", command.format("{home}/no"), NO_STORE),
        Case(f"{command.split()[0]}: no collection", command.format("{store}") + " --collection other",
             NO_COLLECTION),
        Case(f"{command.split()[0]}: unreachable", command.format("http://127.0.0.1:1"), UNREACHABLE),
        Case(f"{command.split()[0]}: no token file",
             command.format("http://127.0.0.1:1") + " --store-token-file {home}/no",
             "cannot read the token file {home}/no: No such file or directory"),
        Case(f"{command.split()[0]}: a lost part of the tree", command.format("{store}"), NO_TREE,
             arrange=harmed(damage.lose_tree_part)),
        Case(f"{command.split()[0]}: an unknown format", command.format("{store}"),
             WHERE + "the collection has format 99; this program reads format 1; give another --collection",
             arrange=harmed(damage.change_format)),
        Case(f"{command.split()[0]}: nothing published", command.format("{store}"),
             WHERE + "the collection has no record __path_tree__: nothing was published in it; fill it with "
             "`chromafuse ingest`", arrange=harmed(damage.lose_root)),
    )
]  # fmt: skip

STORES += [
    Case("a name that steers the terminal", "verify {home}/a\x1b[31m",
         "{home}/a\\x1b[31m, collection docs: it is not a Chroma directory (no chroma.sqlite3 in it); check the "
         "path, or make the store with `chromafuse ingest SRC '{home}/a\\x1b[31m'`"),
]  # fmt: skip

DAEMON = [
    Case("the daemon's failure is the command's", "mount {home}/no {point} --daemon --log-file {home}/log",
         NO_STORE),
]  # fmt: skip

UNREADABLE = (
    "1 of 4 pages cannot be read; ingest their source again, into another --collection where bytes are wrong: "
    "a stored chunk is never overwritten"
)
PAGES = [
    Case("verify: wrong bytes", "verify {store}",
         UNREADABLE,
         arrange=harmed(damage.change_chunk)),
    Case("verify: no chunks", "verify {store}",
         UNREADABLE,
         arrange=harmed(damage.lose_chunks)),
    Case("export: wrong bytes", "export {store} {home}/copy",
         "open.md: stored bytes do not have the digest 1351724c47af851b9b687b9667cc025c; the copy is not whole; "
         "`chromafuse verify` says more", arrange=harmed(damage.change_chunk)),
    Case("export: no chunks", "export {store} {home}/copy",
         "open.md: none of its 1 chunks is stored; the copy is not whole; `chromafuse verify` says more",
         arrange=harmed(damage.lose_chunks)),
    Case("export: not empty", "export {store} {store}",
         "{store} is not empty; give a new directory, or an empty one"),
    Case("export: a file", "export {store} {home}/c.toml",
         "{home}/c.toml is not a directory; give a new one, an empty one, or - for a tar",
         arrange=config("")),
    Case("export: no directory above", "export {store} {home}/no/copy",
         "there is no directory {home}/no; make it first"),
]  # fmt: skip

CASES = USAGE + MOUNTPOINTS + STORES + DAEMON + PAGES


@pytest.fixture
def scene(mount_root: Path, store: Path) -> Scene:
    """Give a home that other users can enter, an empty mountpoint and a whole store."""
    home, point = mount_root / "home", mount_root / "docs"
    for place in (home, point):
        place.mkdir()
    return Scene(home, point, store)


def run(scene: Scene, command: str) -> tuple[int, str]:
    """Run the command in the scene; return exit code and stderr."""
    env = {**environment(scene.home), **scene.env}
    if scene.prefix:
        _give_away(scene)
    done = subprocess.run(
        [*scene.prefix, *PROGRAM, *map(scene.fill, command.split())],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_is_one_clear_line(scene: Scene, case: Case) -> None:
    """Every mistake gives its line, its exit code, and leaves nothing mounted, running or half written."""
    case.arrange(scene)
    assert run(scene, case.command) == (case.code, f"chromafuse: {scene.fill(case.says)}\n")
    assert tuple(layers_at(scene.point)) == case.after
    runtime = scene.home / "run" / "chromafuse"
    wait_for(
        lambda: not runtime.exists() or not list(runtime.iterdir()), what="nothing of a run is left"
    )
    assert [place.name for place in scene.home.glob("*copy*")] == []
    assert list(scene.home.glob(".copy*")) == []


@pytest.mark.parametrize("command", ["mount {} {{point}}", "verify {}", "export {} {{home}}/copy"])
def test_a_wrong_token_is_one_line(scene: Scene, chroma_server: ChromaServer, command: str) -> None:
    """A server that refuses the token is named, with what to check; nothing is mounted or written."""
    (scene.home / "token").write_text("wrong\n")
    with running_proxy(chroma_server.url) as proxy:
        words = command.format(proxy.url) + " --store-token-file {home}/token"
        code, said = run(scene, words)
    assert (code, said) == (
        1,
        f"chromafuse: {proxy.url}, collection docs: Unauthorized (status 401); check the token "
        "(--store-token-file), the tenant and the database\n",
    )
    assert layers_at(scene.point) == []
    assert list(scene.home.glob("*copy*")) == []


def test_a_live_mount_is_never_mounted_upon(scene: Scene) -> None:
    """A second mount is refused, by the same mountpoint under any name; in use, it is not unmounted either."""
    link = scene.home / "link"
    link.symlink_to(scene.point)
    with mounted(scene.home, scene.store, scene.point):
        for name in (str(scene.point), f"{scene.point}/", str(link)):
            assert run(scene, f"mount {{store}} {name}") == (
                1,
                f"chromafuse: {scene.point} is a mount of chromafuse already; `chromafuse umount {scene.point}` "
                "ends it\n",
            )
        held = os.open(scene.point, os.O_RDONLY)
        assert run(scene, "umount {point}") == (
            1,
            f"chromafuse: {scene.point} is in use; end what uses it (`fuser -vm {scene.point}` lists it), or "
            f"detach it with `umount -l {scene.point}`\n",
        )
        os.close(held)
        assert layers_at(scene.point) == ["fuse.chromafuse"]


@pytest.mark.parametrize("harm", [damage.lose_chunks, damage.change_chunk])
def test_a_damaged_page_takes_nothing_else_down(scene: Scene, harm: damage.Harm) -> None:
    """A mount over a page that is lost or wrong lists it, fails to read it, and serves the others."""
    store = damage.damaged(scene.store, scene.home, harm)
    with mounted(scene.home, store, scene.point, "--unrestricted"):
        assert sorted(os.listdir(scene.point)) == ["deep", "name with blanks ü.md", "open.md"]
        with pytest.raises(OSError, match=r"Input/output error"):
            (scene.point / "open.md").read_bytes()
        assert (scene.point / "deep" / "login.md").read_bytes().endswith(b"with a login\n")


def test_an_ordinary_user_mounts_through_fusermount(scene: Scene) -> None:
    """Where /dev/fuse allows it, a user who is not root mounts, reads and unmounts."""
    as_user(scene)
    program = " ".join(PROGRAM)
    env = environment(scene.home) | {"HOME": str(scene.home)}
    _give_away(scene)
    inside = scene.fill(
        f"{program} mount {{store}} {{point}} --daemon --log-file {{home}}/log 2>&1 && cat {{point}}/open.md && "
        f"{program} umount {{point}} && ls -A {{point}}"
    )
    done = subprocess.run(
        [*scene.prefix, "sh", "-c", inside],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (
        f"chromafuse: {scene.point} is mounted: 2 pages for anonymous, generation 1\nfor everyone\n",
        "",
        0,
    )
