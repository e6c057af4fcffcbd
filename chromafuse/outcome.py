"""How a command ends: the exit code, and what a person reads.

A user's mistake is one line on stderr. Anything else that escapes is a bug: a traceback, and exit code 1.

Concurrency: none of it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from .errors import ChromafuseError, UserError
from .text import printable

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def outcome_of(run: Callable[[], int]) -> tuple[int, str]:
    """Run something; return the exit code, and the line for a person where it failed. Prints a bug's traceback."""
    try:
        try:
            return run(), ""
        except BaseExceptionGroup as group:
            raise leaf(group) from group
    except UserError as exc:
        return exc.exit_code, str(exc)
    except KeyboardInterrupt:
        return INTERRUPTED, ""
    except BrokenPipeError:
        # Whoever reads has enough. The interpreter would try once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1, ""
    except Exception:  # noqa: BLE001 - the last place: a bug is shown whole, and is an exit code
        traceback.print_exc()
        return 1, ""


def leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what a group is about: the one thing that happened, or else the whole group."""
    known: list[BaseException] = []
    todo: list[BaseException] = [group]
    while todo:
        exc = todo.pop()
        if isinstance(exc, BaseExceptionGroup):
            todo += exc.exceptions
        elif isinstance(exc, UserError | ChromafuseError | KeyboardInterrupt | BrokenPipeError):
            known.append(exc)
        else:
            return group
    # A Ctrl-C explains whatever else happened.
    return next((exc for exc in known if isinstance(exc, KeyboardInterrupt)), known[0])


def say(line: str) -> None:
    # A path or a server's words may hold anything: it stays one line, and does not steer the terminal.
    print(f"chromafuse: {printable(line)}", file=sys.stderr, flush=True)
