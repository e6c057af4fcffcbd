"""The project's own promises: its commands, its pins, and the harness that every other test trusts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import chromafuse
from tests.support.corpora import corpora
from tests.support.session import FSTYPE, PREFIX, mounts_below
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def canonical(name: str) -> str:
    """Return the name of a distribution in the form that pip compares."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", name, maxsplit=1)[0]).lower()


# -- pins and commands


def test_version_is_semantic_and_in_one_place() -> None:
    """The version is read from the package, and has three numbers."""
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "chromafuse.__version__"
    }
    assert re.fullmatch(r"\d+\.\d+\.\d+", chromafuse.__version__)


def test_every_dependency_is_pinned() -> None:
    """The constraints are exact versions from no named place, and cover what pyproject asks for."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.!+]+", pin)] == []
    project = PYPROJECT["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["test"]
    assert {canonical(name) for name in asked} - {canonical(pin) for pin in pins} == set()


def test_make_without_a_target_lists_the_targets() -> None:
    """`make` alone prints every target a person may want, with what it does."""
    result = subprocess.run(
        ["make", "--no-print-directory"],  # a make inside `make test` says where it enters
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MAKEFLAGS": ""},
    )
    targets = [line.split()[1] for line in result.stdout.splitlines()]
    assert targets == [
        "help", "demo", "test", "test-long", "test-trixie", "test-gnu-grep", "check",
        "fmt", "bench", "bench-peers", "bench-docs", "venv", "clean",
    ]  # fmt: skip


def test_ci_runs_make_test() -> None:
    """Continuous integration runs what a person runs, and nothing else."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in script if line and not line.startswith("#")]
    assert commands == [
        "set -euo pipefail",
        'cd "$(dirname "$0")/.."',
        "export CI=true",
        "exec make test",
    ]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def bootstrap(purpose: str, **environment: str) -> tuple[int, str]:
    """Run the bootstrap script and return its exit code and its stderr."""
    result = subprocess.run(
        [ROOT / "scripts" / "bootstrap.sh", purpose],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return result.returncode, result.stderr


def test_bootstrap_says_in_one_line_that_python_is_missing(tmp_path: Path) -> None:
    """An interpreter that is not there ends the run with the way to get one."""
    assert bootstrap("run", PYTHON=str(tmp_path / "python3")) == (
        1,
        f"chromafuse: no {tmp_path}/python3; install Python 3.11 or newer (apt-get install python3), "
        "or name one: make PYTHON=/path/to/python3 …\n",
    )


def test_bootstrap_says_in_one_line_that_python_is_too_old(tmp_path: Path) -> None:
    """An interpreter older than 3.11 is refused by its version."""
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2 && exit 0\nexit 1\n')
    old.chmod(0o755)
    assert bootstrap("run", PYTHON=str(old)) == (
        1,
        f"chromafuse: {old} is Python 3.9.2; chromafuse needs Python 3.11 or newer: "
        "install one, then make PYTHON=/path/to/python3.11 …\n",
    )


def test_bootstrap_says_in_one_line_what_no_apt_can_install(tmp_path: Path) -> None:
    """Where apt-get is absent, what is missing is named."""
    tools = (
        "bash",
        "dirname",
        "gcc",
        "pkg-config",
        "fusermount3",
        "rg",
        "bwrap",
        "getfattr",
        "openssl",
        "localedef",
    )
    for tool in tools:
        found = subprocess.run(["which", tool], capture_output=True, text=True, check=True)
        (tmp_path / tool).symlink_to(found.stdout.strip())
    assert bootstrap("test", PATH=str(tmp_path), PYTHON=sys.executable) == (
        1,
        "chromafuse: missing here: redis-server; this machine has no apt-get, "
        "so install them with its own package manager\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["ruff", "format", "--check", "."], ["ruff", "check", "."], ["mypy"]],
    ids=["format", "lint", "types"],
)
def test_code_is_clean(command: list[str]) -> None:
    """Formatting, lint rules and strict types hold for the whole project."""
    result = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_corpora_unpack_to_the_trees_that_are_measured() -> None:
    """The real trees, where they are, hold the number of files that every measurement names."""
    assert sum(path.is_file() and not path.is_symlink() for path in corpora().rglob("*")) == 4248


# -- the harness

FAKE_MOUNT = f"""
import ctypes, os
def mount(point):
    # A mount of our type without a daemon: the kernel only wants the descriptor.
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={{fd}},rootmode=40000,user_id=0,group_id=0".encode()
    point.mkdir(exist_ok=True)
    if libc.mount(b"fake", bytes(point), b"{FSTYPE}", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    return fd
"""


def start_suite(
    place: Path, source: str, *arguments: str, **environment: str
) -> subprocess.Popen[str]:
    """Start pytest on one file of tests under this project's harness, as its own run."""
    place.joinpath("test_inner.py").write_text(source, encoding="utf-8")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != "CI" and not name.startswith("PYTEST_")
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"),
            *("-c", ROOT / "pyproject.toml", "--rootdir", place, "--confcutdir", place),
            *(*arguments, place / "test_inner.py"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**inherited, "TMPDIR": str(place), **environment},
    )


def run_suite(place: Path, source: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run pytest on one file of tests under this project's harness; return exit code and output."""
    with start_suite(place, source, *arguments, **environment) as suite:
        output, _ = suite.communicate()
    return suite.returncode, output


def left_in(place: Path) -> tuple[list[str], list[Path]]:
    """Return the mounts and the run directories that lie below a place."""
    return mounts_below(place), list(place.glob(f"{PREFIX}*"))


@pytest.mark.mount
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_failing_test_that_leaves_a_mount_is_cleaned_and_named(
    mount_root: Path, workers: str
) -> None:
    """A mount that a test forgot is unmounted, and the test that owns its directory fails."""
    source = FAKE_MOUNT + (
        "def test_forgets(mount_root):\n"
        "    fd = mount(mount_root / 'm')\n"
        "    assert False, 'on purpose'\n"
    )
    code, output = run_suite(mount_root, source, "-n", workers)
    assert code == 1
    assert re.search(r"left mounted: \S+/m$", output, re.MULTILINE)
    assert "1 failed, 1 error in" in output
    assert left_in(mount_root) == ([], [])


@pytest.mark.mount
def test_a_run_that_leaves_a_mount_fails_although_its_tests_pass(mount_root: Path) -> None:
    """What a shared fixture leaves mounted turns a run of passing tests red."""
    source = FAKE_MOUNT + (
        "from tests.support.session import session_root\n"
        "def test_passes():\n"
        "    mount(session_root() / 'm')\n"
    )
    code, output = run_suite(mount_root, source)
    assert code == 1
    assert re.search(r"^FAILED the run: left mounted: \S+/m$", output, re.MULTILINE)
    assert left_in(mount_root) == ([], [])


@pytest.mark.mount
def test_a_killed_run_leaves_neither_mount_nor_process(mount_root: Path) -> None:
    """SIGKILL of the test process: another one unmounts, ends its children, removes its files."""
    source = FAKE_MOUNT + (
        "import subprocess, time\n"
        "def test_hangs(mount_root):\n"
        "    mount(mount_root / 'm')\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    (mount_root / 'pid').write_text(str(child.pid))\n"
        "    child.wait()\n"
    )
    with start_suite(mount_root, source) as suite:
        try:
            pid_file = wait_for(
                lambda: next(mount_root.glob("*/*/pid"), None), what="the inner test", timeout=30
            )
            pid = wait_for(pid_file.read_text, what="its child's pid")
            assert mounts_below(mount_root)
        finally:
            suite.send_signal(signal.SIGKILL)
            suite.communicate()
    wait_for(lambda: left_in(mount_root) == ([], []), what="nothing mounted, nothing left")
    wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), what="the child's end")


def test_a_process_that_is_left_fails_the_run(tmp_path: Path) -> None:
    """A child that outlives the suite is killed and named."""
    source = (
        "import subprocess, warnings\n"
        "def test_passes():\n"
        "    subprocess.Popen(['sleep', '600'], start_new_session=True).returncode = 0\n"
    )
    code, output = run_suite(tmp_path, source)
    assert code == 1
    assert re.search(r"^FAILED the run: left running: \d+ sleep 600$", output, re.MULTILINE)


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("ci", "expected"), [("", 0), ("true", 1)], ids=["here", "ci"])
def test_a_skipped_mount_test_fails_in_ci_only(
    tmp_path: Path, workers: str, ci: str, expected: int
) -> None:
    """In CI a test marked `mount` that was skipped fails the run; any other skip is fine."""
    source = (
        "import pytest\n"
        "@pytest.mark.mount\n"
        "def test_mounts(): pytest.skip('no reason')\n"
        "def test_reads(): pytest.skip('absent data')\n"
    )
    code, output = run_suite(tmp_path, source, "-n", workers, CI=ci)
    line = "FAILED the run: a mount test was skipped in CI: test_inner.py::test_mounts"
    assert (code, output.splitlines().count(line)) == (expected, expected)
    assert "2 skipped in" in output


def test_the_log_has_to_be_announced(tmp_path: Path) -> None:
    """An unannounced warning fails its test, an announced one does not, one that stays away does."""
    source = (
        "import logging, pytest\n"
        "log = logging.getLogger('some.part')\n"
        "def test_unannounced(): log.warning('the %s is gone', 'store')\n"
        "def test_info(): log.info('fine')\n"
        "@pytest.mark.expect_log('is gone')\n"
        "def test_announced(): log.error('the store is gone')\n"
        "@pytest.mark.expect_log('is gone')\n"
        "def test_absent(): pass\n"
        "@pytest.mark.expect_log('is gone', maybe=True)\n"
        "def test_maybe(): pass\n"
        "def test_fixture(log_guard): log_guard.expect('odd'); log.warning('odd')\n"
    )
    code, output = run_suite(tmp_path, source, "--tb=short", COLUMNS="500")
    assert code == 1
    failed = [line for line in output.splitlines() if line.startswith("FAILED")]
    assert [line.partition("test_inner.py::")[2] for line in failed] == [
        "test_unannounced - Failed: unexpected log record: WARNING some.part: the store is gone",
        "test_absent - Failed: expected log record did not come: is gone",
    ]
    assert "2 failed, 4 passed in" in output


def test_wait_for_names_what_did_not_come() -> None:
    """A state that does not come in time fails with its name and what was seen last."""
    with pytest.raises(AssertionError) as caught:
        wait_for(list, timeout=0.02, what="three mounts")
    assert str(caught.value) == "not within 0.02 s: three mounts (last seen: [])"
    values = iter([0, 0, 7])
    assert wait_for(lambda: next(values), what="a seven") == 7
