"""When each file of a git checkout was last committed, in one pass over the log.

The checkout is another's: no signature, diff or text conversion program of its configuration is run.
Concurrency: one child process, waited for.
"""

from __future__ import annotations

import os
import subprocess

from ..errors import UserError

_NS = 1_000_000_000
_MARK = b"//"  # no path that git prints begins so
_LOG = [
    "git", "--no-pager", "-c", "log.showSignature=false", "-c", "core.fsmonitor=false",
    "log", "--format=tformat://%ct", "-z", "--name-only", "--no-renames", "--no-ext-diff", "--no-textconv",
    "--relative", "--", ".",
]  # fmt: skip


def commit_times(directory: str) -> dict[str, int]:
    """Return path -> time (ns) of the newest commit that touches it, for the files below `directory`.

    Raises UserError where git is absent or `directory` is not in a checkout with a commit.
    """
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    try:
        done = subprocess.run(
            _LOG,
            cwd=directory,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(
            "--mtime git needs git, which is not installed; or use --mtime file"
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["git log failed"]
        raise UserError(f"--mtime git: {said[0]}; use --mtime file outside a git checkout")
    return parse_log(done.stdout)


def parse_log(output: bytes) -> dict[str, int]:
    """Read `git log -z --name-only` with the format `//%ct`; the newest mention of a path counts.

    Tokens end in NUL. The first path after a commit's line begins with a line feed that is not its own.
    """
    times: dict[str, int] = {}
    time, first = 0, False
    for token in output.split(b"\0"):
        if token.startswith(_MARK):
            time, first = int(token.removeprefix(_MARK)) * _NS, True
        elif token:
            path = token[1:] if first and token.startswith(b"\n") else token
            first = False
            times.setdefault(path.decode("utf-8", "surrogateescape"), time)
    return times
