"""Who is at work in this process, of each kind of request, and whose turn is next.

A request takes a place once its caller is known and before anything else is done for it; the envelope gives the place
back, however the answer ends. Nobody holds more than a share of the places or of the line before them, and the lines
are served in turn. Whom the request clock would not let finish is told so at once. What a process held dies with it.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from starlette.requests import Request

from gateway.settings import Settings
from workflows.contract.errors import ProblemCode, Refused

PLACE = "jobgate.place"
"""The key in an ASGI scope under which the place of this request is."""
REMEMBERED_S = 10.0
"""How far back the speed of a line counts in full."""
PATIENCE = 0.5
"""The part of the time left that may go by in a line: its speed is a guess, and the work itself needs the rest."""
LONGEST_RETRY_S = 30

Who = tuple[str, str] | None
"""Workspace and principal. Whoever proves something else than a principal is one guest together: None."""
Why = Literal["share", "full", "late", "stopping"]


class Kind(StrEnum):
    """Each kind has places of its own, so that none keeps another waiting."""

    SUBMISSIONS = "submissions"
    CHANGES = "changes"
    READS = "reads"
    STREAMS = "streams"
    """Also polls that wait for news."""
    UPLOADS = "uploads"
    KEYS = "keys"
    """API keys that are looked up: before anybody is known, so their guests are the keys."""


_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "submitJob": Kind.SUBMISSIONS,
        "retryJob": Kind.SUBMISSIONS,
        "streamEvents": Kind.STREAMS,
        "uploadArtifact": Kind.UPLOADS,
    }
)


def kind_of(request: Request) -> Kind:
    """By the route that was matched."""
    operation = getattr(request.scope.get("route"), "operation_id", None)
    if operation == "getJob" and "prefer" in request.headers:
        return Kind.STREAMS
    return _KINDS.get(operation or "", Kind.READS if request.method in ("GET", "HEAD") else Kind.CHANGES)


@dataclass(slots=True, eq=False)
class _Guest:
    """What one principal has in a room: places, and a line of which `moved` were seated since `since` (loop time)."""

    inside: int = 0
    line: dict[asyncio.Future[None], None] = field(default_factory=dict[asyncio.Future[None], None])
    since: float = 0.0
    moved: float = 0.0

    def answered_in(self, now: float) -> float:
        """Seconds until one more of this line would be answered, by how fast the line has moved lately."""
        if not self.line:
            return 0.0
        spent = now - self.since
        if spent > REMEMBERED_S:
            spent /= 2
            self.since, self.moved = now - spent, self.moved / 2
        return spent * (self.inside + len(self.line) + 1) / max(self.inside + self.moved, 1.0)


@dataclass(slots=True, eq=False)
class Place:
    """Held by one request; whoever holds it leaves it once."""

    _room: "Room"
    _who: Who

    def leave(self) -> None:
        self._room.leave(self._who)


class Room:
    """The places of one kind. `line`: how many may wait for one; 0: nobody waits. `share`: of both, for one guest."""

    def __init__(self, places: int, line: int, share: float) -> None:
        self.taken = self.waiting = 0
        self._places, self._own_places = places, max(1, int(places * share))
        self._line, self._own_line = line, math.ceil(line * share)
        self._guests: dict[Who, _Guest] = {}
        self._turns: deque[Who] = deque()
        """Whoever has a line, the next one first."""

    async def enter(self, who: Who, until: float) -> tuple[Place, None] | tuple[None, Why]:
        """A place, at once or when it is this guest's turn; or why not. `until`: the clock's end (loop time)."""
        guest = self._guests.get(who) or _Guest()
        full = self.taken >= self._places
        if not (guest.line or full or guest.inside >= self._own_places):
            self._guests[who] = guest
            self._seat(guest)
            return Place(self, who), None
        if len(guest.line) >= self._own_line:
            return None, "full" if full and guest.inside < self._own_places else "share"
        if self.waiting >= self._line:
            return None, "full"
        now = asyncio.get_running_loop().time()
        patient_until = now + PATIENCE * (until - now)
        if now + guest.answered_in(now) >= patient_until:
            return None, "late"
        self._guests[who] = guest
        try:
            await self._turn(who, guest, patient_until)
        except TimeoutError:
            return None, "late"
        return Place(self, who), None

    def retry_after_s(self, who: Who) -> int:
        guest = self._guests.get(who)
        wait_s = guest.answered_in(asyncio.get_running_loop().time()) if guest is not None else 0.0
        return min(max(1, math.ceil(wait_s)), LONGEST_RETRY_S)

    def leave(self, who: Who) -> None:
        guest = self._guests[who]
        guest.inside -= 1
        self.taken -= 1
        self._serve()
        self._forget(who, guest)

    def send_away(self, told: Callable[[], Refused]) -> None:
        """Whoever waits is refused."""
        for guest in self._guests.values():
            for turn in guest.line:
                if not turn.done():
                    turn.set_exception(told())

    async def _turn(self, who: Who, guest: _Guest, until: float) -> None:
        loop = asyncio.get_running_loop()
        if not guest.line:
            guest.since, guest.moved = loop.time(), 0.0
            self._turns.append(who)
        turn: asyncio.Future[None] = loop.create_future()
        guest.line[turn] = None
        self.waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await turn
        except BaseException:
            if turn in guest.line:
                self._quit(who, guest, turn)
            else:  # seated at the very moment of leaving
                self.leave(who)
            raise

    def _serve(self) -> None:
        """Seats who is next, one of each line at most: a place that was left is one place."""
        for _ in range(len(self._turns)):
            if self.taken >= self._places:
                return
            who = self._turns.popleft()
            guest = self._guests[who]
            turn = next((one for one in guest.line if not one.done()), None)
            if turn is not None and guest.inside < self._own_places:
                del guest.line[turn]
                self.waiting -= 1
                guest.moved += 1
                self._seat(guest)
                turn.set_result(None)
            if guest.line:
                self._turns.append(who)

    def _seat(self, guest: _Guest) -> None:
        guest.inside += 1
        self.taken += 1

    def _quit(self, who: Who, guest: _Guest, turn: asyncio.Future[None]) -> None:
        del guest.line[turn]
        self.waiting -= 1
        if not guest.line:
            self._turns.remove(who)
        self._forget(who, guest)

    def _forget(self, who: Who, guest: _Guest) -> None:
        if not guest.inside and not guest.line:
            self._guests.pop(who, None)


class Places:
    """One per API process. `count` is told of every refusal."""

    def __init__(self, settings: Settings, count: Callable[[Kind, Why], None]) -> None:
        share, line = settings.principal_share, settings.requests_waiting
        self._rooms = {
            Kind.SUBMISSIONS: Room(settings.submissions_at_once, line, share),
            Kind.CHANGES: Room(settings.changes_at_once, line, share),
            Kind.READS: Room(settings.reads_at_once, line, share),
            Kind.STREAMS: Room(settings.streams_at_once, 0, share),
            Kind.UPLOADS: Room(settings.uploads_at_once, 0, share),
            Kind.KEYS: Room(settings.reads_at_once, line, share),
        }
        self._count = count
        self.closing = False
        """The process is about to end: it takes nothing new."""

    async def enter(self, kind: Kind, who: Who, until: float) -> Place:
        """By `until`, the end of the request clock (event loop time), or Refused; then nothing was done."""
        if self.closing:
            self._count(kind, "stopping")
            raise stopping()
        room = self._rooms[kind]
        place, why = await room.enter(who, until)
        if place is None:
            assert why is not None
            self._count(kind, why)
            raise Refused(ProblemCode.TOO_MANY_REQUESTS, _SAID[why], retry_after_s=room.retry_after_s(who))
        return place

    def close(self) -> None:
        """From now on nothing new is taken, not even whoever waits already."""
        self.closing = True
        for room in self._rooms.values():
            room.send_away(stopping)

    @property
    def taken(self) -> int:
        return sum(room.taken for room in self._rooms.values())

    def figures(self) -> Iterable[tuple[Kind, int, int]]:
        """Of each kind: how many are at work, and how many wait."""
        return [(kind, room.taken, room.waiting) for kind, room in self._rooms.items()]


_SAID: Mapping[Why, str] = MappingProxyType(
    {
        "share": "This caller has as many requests of this kind open here as one may have: nothing was done.",
        "full": "This process has as many requests of this kind as it can take: nothing was done.",
        "late": "This request would not be answered within its clock: nothing was done.",
    }
)


def stopping() -> Refused:
    return Refused(ProblemCode.STOPPING, "This process is being stopped: nothing was done. Ask again.", retry_after_s=1)
