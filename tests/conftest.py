"""What holds for every test: strict logs, nothing left mounted or running, one directory a run.

`mount_root` gives a test its place for mountpoints. In CI (environment variable CI) a skipped test
marked `mount` fails the run: a machine that cannot mount proves nothing about mounts.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import hypothesis
import pytest

from tests.support import session
from tests.support.chroma_server import chroma_server  # noqa: F401 - a fixture for every module
from tests.support.logguard import LogGuard
from tests.support.waiting import wait_for

GUARD = pytest.StashKey[LogGuard]()

# Deadlines of hypothesis measure the machine, not the code. The same examples in every run, so that
# a red test is red for its author too; `long` (make test-long) looks for new ones.
hypothesis.settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, database=None
)
hypothesis.settings.register_profile(
    "long",
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("ci")


class Run:
    """The run's directory and verdict; lives in the process that reports, never in a worker."""

    def __init__(self) -> None:
        self.root: Path
        self.lock: IO[str]
        self.janitor: subprocess.Popen[bytes]
        self.skipped_mounts: list[str] = []
        self.complaints: list[str] = []

    def start(self) -> None:
        session.sweep_dead_sessions()
        self.root, self.lock = session.create_root()
        self.janitor = session.start_janitor(self.root)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and "mount" in report.keywords and not hasattr(report, "wasxfail"):
            self.skipped_mounts.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.complaints = self._left_behind() + self._unproven()
        if self.complaints and session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.complaints:
            terminalreporter.write_line(f"FAILED the run: {line}", red=True, bold=True)

    def finish(self) -> None:
        session.clear(self.root)
        self.janitor.communicate(b"done")
        self.lock.close()
        del os.environ[session.ENVIRONMENT]

    def _left_behind(self) -> list[str]:
        mounted = [f"left mounted: {point}" for point in session.unmount_below(self.root)]
        try:  # workers of this run may still be on their way out
            wait_for(lambda: not session.processes_of(self.root), timeout=5, what="no process left")
        except AssertionError:
            running = session.processes_of(self.root)
            session.kill(running)
            return mounted + [f"left running: {pid} {line}" for pid, line in running.items()]
        return mounted

    def _unproven(self) -> list[str]:
        if not os.environ.get("CI"):
            return []
        return [f"a mount test was skipped in CI: {nodeid}" for nodeid in self.skipped_mounts]


RUN = pytest.StashKey[Run]()


def pytest_configure(config: pytest.Config) -> None:
    """Open the run's directory, once, before workers are started."""
    if hasattr(config, "workerinput"):
        return
    run = Run()
    run.start()
    config.stash[RUN] = run
    config.pluginmanager.register(run, "chromafuse-run")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's directory."""
    if RUN in config.stash:
        config.stash[RUN].finish()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that mount where the kernel's device cannot be opened."""
    if item.get_closest_marker("mount") and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is absent or not open to this user")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that passed by everything but its log."""
    guard = item.stash.get(GUARD, None)
    try:
        yield
    except BaseException:
        if guard is not None:
            guard.complaints()  # the test's own failure is what counts; its log is shown with it
        raise
    if guard is not None and (complaints := guard.complaints()):
        pytest.fail("\n".join(complaints), pytrace=False)


@pytest.fixture(autouse=True)
def log_guard(request: pytest.FixtureRequest) -> Iterator[LogGuard]:
    """Collect the test's log; unannounced warnings fail it, those of its teardown as well."""
    guard = LogGuard()
    for marker in request.node.iter_markers("expect_log"):
        guard.expect(*marker.args, **marker.kwargs)
    request.node.stash[GUARD] = guard
    logging.getLogger().addHandler(guard.handler)
    yield guard
    logging.getLogger().removeHandler(guard.handler)
    if complaints := guard.complaints():
        pytest.fail("\n".join(complaints), pytrace=False)


@pytest.fixture
def mount_root() -> Iterator[Path]:
    """Give a directory that other users can enter; what is left mounted in it fails the test."""
    root = Path(tempfile.mkdtemp(prefix="mounts-", dir=session.session_root()))
    root.chmod(0o755)
    yield root
    left = session.unmount_below(root)
    shutil.rmtree(root, ignore_errors=True)
    if left:
        pytest.fail(f"left mounted: {', '.join(left)}", pytrace=False)
