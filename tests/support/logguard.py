"""A test that logs a warning nobody announced is a failed test.

`expect_log("text")` as a marker, or the `log_guard` fixture's `expect("text")`, announces records
of level WARNING and above whose message contains the text. What is announced has to come, unless
`maybe`. Records are collected from the root logger, from the test's set-up on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field


@dataclass(slots=True)
class Expected:
    """One announced text, and whether a record with it was seen."""

    text: str
    maybe: bool = False
    seen: bool = False


class Collector(logging.Handler):
    """Keeps what reaches the root logger at WARNING or above."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@dataclass(slots=True)
class LogGuard:
    """The records of one test against what the test announced."""

    handler: Collector = field(default_factory=Collector)
    expected: list[Expected] = field(default_factory=list)

    def expect(self, text: str, *, maybe: bool = False) -> None:
        """Announce records that contain `text`, before or after they come."""
        self.expected.append(Expected(text, maybe))

    def complaints(self) -> list[str]:
        """Return a line for every unannounced record and every announced text that did not come.

        What was looked at is forgotten, so a second call speaks only of what came since.
        """
        records, self.handler.records = self.handler.records, []
        unexpected = [line for line in map(_line, records) if not self._announced(line)]
        absent = [item for item in self.expected if not item.seen and not item.maybe]
        for item in absent:
            item.seen = True
        return [f"unexpected log record: {line}" for line in unexpected] + [
            f"expected log record did not come: {item.text}" for item in absent
        ]

    def _announced(self, line: str) -> bool:
        matching = [item for item in self.expected if item.text in line]
        for item in matching:
            item.seen = True
        return bool(matching)


def _line(record: logging.LogRecord) -> str:
    line = f"{record.levelname} {record.name}: {record.getMessage()}"
    if record.exc_info:
        line += "\n" + logging.Formatter().formatException(record.exc_info)
    return line
