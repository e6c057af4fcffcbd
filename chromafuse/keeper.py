"""Keeping a hub: starting it, handing its link to the view, and starting another when it dies.

The next hub comes after 0.1 s, doubling to 5 s, and is told which tree the view holds (the `pin`). A hub that
cannot start is tried again for ever: the view serves what is cached meanwhile, and `status` says why there is
no hub. The first hub is the exception: where it fails, there is no mount, and nothing is tried again.

Concurrency: one task runs `run`; any task may ask for `status`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from .children import Child, socket_pair
from .job import Job
from .text import printable

log = logging.getLogger(__name__)

STOP = 5.0  # s that a child has to end
FIRST_DELAY, LAST_DELAY = 0.1, 5.0  # s before the hub is started again
SETTLED = 10.0  # s of life after which a hub's next death begins at the first delay
ANSWER = 1.0  # s that hub and view have to answer a question for `status`


@dataclass(frozen=True, slots=True)
class Failed:
    """A child cannot do what it was started for: the line to show, and the exit code."""

    message: str
    code: int = 1


@dataclass(frozen=True, slots=True)
class HubReady:
    """A hub serves its link. `facts` is what it says of the tree."""

    facts: dict[str, Any]


class HubKeeper:
    """One mount's hubs, of which one lives at a time."""

    def __init__(
        self,
        job: Job,
        link: Callable[[int], Awaitable[None]],
        tell: Callable[[HubReady | Failed], Awaitable[None]],
        *,
        stderr: int | None = None,
    ) -> None:
        self._job = job
        self._link = link  # hands a descriptor to the view
        self._tell = tell
        self._stderr = stderr
        self._child: Child | None = None
        self._ready = False  # the one that lives has said so
        self._error = ""  # why none is ready, when one was before
        self._starts = 0
        self._ending = trio.Event()

    async def run(self) -> None:
        """Keep a hub until `ending` is called, or until the first one failed."""
        delay, pin = FIRST_DELAY, None
        while True:
            started = trio.current_time()
            facts, failure = await self._run_one(pin)
            self._ready = False
            if self._ending.is_set():
                return
            if pin is None and facts is None:
                await self._tell(failure)
                return
            if facts is not None:
                pin = pin or {name: facts[name] for name in ("generation", "sha256")}
            if failure.message != self._error:
                log.warning("%s; it is started again", failure.message)
            self._error = failure.message
            if trio.current_time() - started > SETTLED:
                delay = FIRST_DELAY
            with trio.move_on_after(delay):
                await self._ending.wait()
                return
            delay = min(2 * delay, LAST_DELAY)

    def ending(self) -> Child | None:
        """Start no more; return the hub that is to be ended."""
        self._ending.set()
        alive = self._child is not None and self._child.process.returncode is None
        return self._child if alive else None

    async def status(self) -> dict[str, Any]:
        """Return the hub's own answer, and how it is."""
        child, answer = self._child, None
        if self._ready and child is not None:
            answer = await child.line.ask("status", "status", ANSWER)
        return {**(answer or {}), **self._known(answered=answer is not None)}

    def _known(self, *, answered: bool) -> dict[str, Any]:
        # One that is not ready has nothing true to say of the tree or the store.
        word = "starting" if not self._error else "down"
        if self._ready:
            word = "ok" if answered else "does not answer"
        return {
            "hub": word,
            "hub_error": "" if self._ready else self._error,
            "hub_pid": self._child.pid if self._child else None,
            "hub_restarts": max(0, self._starts - 1),
        }

    async def _run_one(self, pin: dict[str, Any] | None) -> tuple[dict[str, Any] | None, Failed]:
        """Run one hub to its end; return what it was ready with, and why it ended."""
        facts: dict[str, Any] | None = None
        failure: Failed | None = None
        with socket_pair() as (ours, theirs):
            hub = await Child.start(
                "chromafuse.hub", descriptors=[theirs.fileno()], stderr=self._stderr
            )
            self._child = hub
            self._starts += 1
            try:
                await hub.line.send(self._job.start_line(theirs.fileno(), pin))
                theirs.close()  # the view sees the end of the link when the hub dies
                async for event in hub.line.read():
                    if event["event"] == "ready":
                        facts = {name: value for name, value in event.items() if name != "event"}
                        await self._introduce(ours, facts)
                    elif event["event"] == "failed":
                        failure = Failed(event["message"], event["exit_code"])
            finally:
                with trio.CancelScope(shield=True):
                    await hub.end(STOP)
                    await hub.process.wait()
        shown = printable(self._job.mountpoint)
        return facts, failure or Failed(f"{shown}: the hub died ({hub.ended})")

    async def _introduce(self, link: socket.socket, facts: dict[str, Any]) -> None:
        await self._link(link.fileno())
        link.close()
        self._ready = True
        await self._tell(HubReady(facts))
