"""The command line: which words there are, and which of them a command has.

Exit codes: 0 done, 1 operational failure, 2 usage; see outcome for how each end looks, and commands for what
the commands do.

Concurrency: one command a process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import __version__
from .commands import COMMANDS, TOOLS, run_tool
from .errors import UsageError
from .outcome import outcome_of, say


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    code, line = outcome_of(lambda: _dispatch(arguments))
    if line:
        say(line)
    return code


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in TOOLS:
        run_tool(arguments[0], arguments[1:])
    word = next((word for word in arguments if not word.startswith("-")), "")
    parser = _parser(word)
    if not arguments:
        parser.print_help()
        return UsageError.exit_code
    if not arguments[0].startswith("-") and word not in COMMANDS:
        raise UsageError(f"there is no command {word!r}; see `chromafuse --help`")
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        about = f"chromafuse {args.command or ''}".rstrip()
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}; see `{about} --help`")
    if not args.command:
        raise UsageError("no command is given; see `chromafuse --help`")
    code = COMMANDS[args.command].run(args)
    sys.stdout.flush()
    return code


def _parser(word: str) -> argparse.ArgumentParser:
    """Return the parser; only the command `word` gets its arguments, whose modules take their time."""
    parser = _Parser(
        prog="chromafuse",
        description="Mount a documentation collection kept in Chroma as a read-only directory.",
        epilog="Exit codes: 0 done, 1 failure, 2 usage. `chromafuse COMMAND --help` says more.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"chromafuse {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        below = commands.add_parser(
            name,
            help=command.help,
            description=command.help,
            epilog="\n  ".join(["examples:", *command.examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == word:
            command.declare(below)
    return parser


if __name__ == "__main__":
    sys.exit(main())
