"""What following a slot takes, without a connection: positions, retries, and the messages to and
from the service.

:class:`Slot` (threads) and :class:`AsyncSlot` (asyncio) drive it; neither decides anything about
positions by itself. Three of them move forward::

    resume ≥ given ≥ flush

``resume``: everything before was received whole, so a new connection asks from there. ``given``:
the loop was given everything before.
``flush``: the loop has handled everything before, or the user said so; that is what the service is
told, and what a loop that is begun anew goes on from.

A *mark* says that nothing of this consumer is before a position, though no transaction ends there:
the ``confirm_lsn`` of each response. It travels through the queue behind what came with it, so it
counts only when all of that was handled.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from spillway_client._v1 import change_stream_pb2
from spillway_client.arrow import Batch, BatchAssembly
from spillway_client.assembly import TransactionAssembly
from spillway_client.errors import (
    InvalidUse,
    MalformedMessage,
    ServiceError,
    SlotActive,
    SlotAhead,
    WrongPlugin,
)
from spillway_client.lsn import Lsn
from spillway_client.service import addresses_of
from spillway_client.transaction import Changes, Progress, Transaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway_client._v1.slots_pb2 import Slot as SlotInfo
    from spillway_client.assembly import Assembly
    from spillway_client.service import Address, Tls
    from spillway_client.values import Converter

log = logging.getLogger("spillway_client")

_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 5.0
#: Of what a manual consumer has not confirmed, so many marks are kept; the newest are worth the
#: most.
_MARKS_MAX: Final = 10_000
_ITEM_BYTES: Final = 512
#: What the client reads; the rest of pgoutput's options is the user's.
_PGOUTPUT: Final = {
    "binary": "off",
    "streaming": "off",
    "DateStyle": "ISO",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything before *lsn* came before this in the queue."""

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Final_:  # noqa: N801 - Final is typing's
    """The stream has reached ``upto_lsn``."""


Item = Transaction | Batch | Mark | Final_


def size_of(item: Item) -> int:
    """Return about how many bytes an item holds in memory."""
    if isinstance(item, Transaction) and isinstance(item.changes, Changes):
        return _ITEM_BYTES + item.changes.memory_bytes
    if isinstance(item, Batch):
        return _ITEM_BYTES + int(item.record_batch.nbytes)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a slot was made with; see :class:`spillway_client.Slot`."""

    addresses: tuple[Address, ...]
    name: str
    publications: tuple[str, ...] | None
    messages: bool
    options: Mapping[str, str]
    start_lsn: Lsn | None
    upto_lsn: Lsn | None
    feedback: Literal["auto", "manual"]
    confirm_seconds: float
    retry_seconds: float | None
    queue_bytes: int
    buffer_bytes: int
    max_transaction_bytes: int | None
    batch_bytes: int
    converters: Mapping[str | int, Converter] = field(repr=False)


def settings_of(
    address: str | Sequence[str], name: str, token: str | None, tls: Tls | None, **given: Any
) -> Settings:
    """Check what a slot is made with.

    Raises:
        InvalidUse: something of it can't be meant.
    """
    addresses = addresses_of(address, token, tls)
    if given["feedback"] not in ("auto", "manual"):
        raise InvalidUse(f"feedback is {given['feedback']!r}", hint="It is 'auto' or 'manual'.")
    for option in ("confirm_seconds", "queue_bytes", "buffer_bytes"):
        if given[option] <= 0:
            raise InvalidUse(f"{option} is {given[option]}", hint="It must be above 0.")
    # PostgreSQL reads a setting's name, such as DateStyle, in any case.
    ours = {name.lower() for name in (*_PGOUTPUT, "proto_version", "publication_names")}
    taken = sorted(name for name in given["options"] if name.lower() in ours)
    if taken:
        raise InvalidUse(
            f"the option {taken[0]} is not the user's to give",
            hint="Name publications by `publications`; the rest is what the client reads.",
        )
    publications = given.pop("publications")
    if isinstance(publications, str):
        publications = (publications,)
    return Settings(
        addresses=addresses,
        name=name,
        publications=None if publications is None else tuple(publications),
        start_lsn=_lsn(given.pop("start_lsn")),
        upto_lsn=_lsn(given.pop("upto_lsn")),
        **given,
    )


def _lsn(value: int | str | None) -> Lsn | None:
    if value is None:
        return None
    try:
        return Lsn(value)
    except ValueError as error:
        raise InvalidUse(str(error), hint="An LSN is a number, or a text like 0/16B3748.") from None


def loop_is_over() -> InvalidUse:
    """Return what a loop is told whose slot is not its own any more."""
    return InvalidUse(
        "the slot was closed, or another loop over it was begun",
        hint="Have one loop over a slot at a time, within its `with`.",
    )


class Follower:
    """See the module. What a receiver does and what the loop does touch different fields."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.plugin = ""
        #: how often a connection was lost and made again
        self.reconnects = 0
        self._attempts = 0
        self._address = 0
        #: the process that has the slot open; None: it is not open
        self._process: int | None = None
        self._down_since_s: float | None = None
        self._had_slot = False
        self._slot_options: Mapping[str, str] = {}
        self._assembly: Assembly | None = None
        # The receiver's.
        self.resume_lsn = settings.start_lsn or Lsn(0)
        self.stored_lsn = Lsn(0)
        # The loop's.
        self._given_lsn = Lsn(0)
        self.flush_lsn = Lsn(0)
        self._first_lsn = self.resume_lsn
        #: something was given that is not handled
        self._is_open = False
        self._marks: deque[tuple[Lsn, Lsn]] = deque(maxlen=_MARKS_MAX)
        self._progress_at_s = 0.0

    # ---- connecting

    @property
    def address(self) -> Address:
        """Where to connect to next."""
        return self.settings.addresses[self._address % len(self.settings.addresses)]

    def tries_next(self, error: ServiceError, tried: int) -> bool:
        """Say whether a slot that is opened is tried at the next address after *error*, *tried*
        ones having failed: the service that works may be any of them.
        """
        if tried >= len(self.settings.addresses) or not error.is_transient:
            return False
        self._address += 1
        return True

    # ---- whose it is

    def is_opened(self) -> None:
        """Take it that this process has opened the slot."""
        self._process = os.getpid()

    def is_closed(self) -> None:
        """Take it that the slot is closed."""
        self._process = None

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that has the slot open."""
        return self._process is not None and self._process != os.getpid()

    def check_process(self) -> None:
        """See whether this process can use the slot: a fork copies neither threads nor what gRPC
        has of a connection, and whoever waited for them would wait for ever.

        Raises:
            InvalidUse: it was forked from the one that has the slot open.
        """
        if self.is_inherited:
            raise InvalidUse(
                "the slot was opened by the process that this one was forked from",
                hint="Follow it there, or open a slot in a process that multiprocessing starts by "
                "spawn.",
            )

    # ---- connecting

    @property
    def keeps_position(self) -> bool:
        """Whether the user stores positions: then only what the loop was given is confirmed."""
        return self.settings.start_lsn is not None

    def found(self, slot: SlotInfo) -> None:
        """Look at the slot before a stream is started.

        Raises:
            WrongPlugin: its output is not for this client.
            InvalidUse: no publication is named; or pyarrow is missing.
        """
        if slot.plugin not in ("pgoutput", "arrow"):
            raise WrongPlugin(
                f"slot {slot.slot_name} has the plugin {slot.plugin}",
                hint="Make a slot with the plugin pgoutput (transactions) or arrow (batches). What "
                "other plugins write is for `spillway recv`.",
                slot=slot.slot_name,
                plugin=slot.plugin,
            )
        self.plugin = slot.plugin
        self._slot_options = dict(slot.options)
        named = self.settings.publications or slot.options.get("publication_names")
        if self.plugin == "pgoutput" and not named:
            raise InvalidUse(
                f"slot {slot.slot_name} names no publication",
                hint='Give Slot(..., publications=["name"]), a publication that is there on the '
                "source.",
                slot=slot.slot_name,
            )
        if self._assembly is None:
            self._assembly = (
                BatchAssembly()
                if self.plugin == "arrow"
                else TransactionAssembly(
                    self.settings.buffer_bytes,
                    self.settings.max_transaction_bytes,
                    self.settings.converters,
                )
            )

    def start(self) -> change_stream_pb2.StreamRequest:
        """Make a stream's first message."""
        settings = self.settings
        options = dict(settings.options)
        if self.plugin == "pgoutput":
            asked = {**self._slot_options, **options}.get("two_phase", "off")
            two_phase = asked.lower() not in _FALSE
            options |= {**_PGOUTPUT, "proto_version": "3" if two_phase else "1"}
            if settings.publications is not None:
                options["publication_names"] = ",".join(map(_quoted, settings.publications))
            if settings.messages:
                options["messages"] = "on"
        return change_stream_pb2.StreamRequest(
            start=change_stream_pb2.Start(
                slot_name=settings.name,
                start_lsn=self.resume_lsn,
                upto_lsn=settings.upto_lsn or 0,
                options=options,
                batch_bytes=settings.batch_bytes,
            )
        )

    def took(self, slot: SlotInfo) -> None:
        """Look at the slot once it is ours: nobody else can move it any more.

        Raises:
            SlotAhead: it was confirmed past what this consumer has.
        """
        confirmed = Lsn(slot.confirmed_flush_lsn)
        if self.resume_lsn and confirmed > self.resume_lsn:
            raise SlotAhead(
                f"slot {slot.slot_name} was confirmed up to {confirmed}, and this consumer has "
                f"everything before {self.resume_lsn} only",
                hint=f"Something else moved the slot. `spillway slot rewind {slot.slot_name} "
                f"{self.resume_lsn}` brings it back if the changes are still retained; otherwise "
                "copy the tables anew. A consumer needs a slot of its own.",
                slot=slot.slot_name,
                lsn=str(self.resume_lsn),
            )
        if not self._had_slot:
            self._first_lsn = self.resume_lsn = max(self.resume_lsn, confirmed)
        else:
            self.reconnects += 1
        self._had_slot = True
        self._down_since_s = None
        assert self._assembly is not None
        self._assembly.reconnected()

    def delay_after(self, error: ServiceError) -> float:
        """Return how many seconds to wait before the next attempt.

        Raises:
            ServiceError: *error*, if there is no use in one, or it was tried for long enough.
        """
        # After a cut, the service may not have noticed yet that the slot is free.
        if not (error.is_transient or (self._had_slot and isinstance(error, SlotActive))):
            raise error
        now_s, limit_s = time.monotonic(), self.settings.retry_seconds
        if self._down_since_s is None:
            self._down_since_s = now_s
        if limit_s is not None and now_s - self._down_since_s >= limit_s:
            raise error
        self._address += 1
        delay_s: float = min(_BACKOFF_FIRST_S * 2**self._attempts, _BACKOFF_MAX_S)
        self._attempts = min(self._attempts + 1, 10)
        delay_s *= random.uniform(0.5, 1)  # noqa: S311 - so that consumers don't come all at once
        log.warning(
            "slot %s: %s; trying again in %.1f s", self.settings.name, error.message, delay_s
        )
        return delay_s

    # ---- receiving

    def take(self, response: change_stream_pb2.StreamResponse) -> list[Item]:
        """Take a response; return what goes into the queue.

        Raises:
            SpillwayError: it can't be read, or exceeds a bound.
        """
        if response.HasField("keepalive"):
            keepalive = response.keepalive
            self.stored_lsn = max(self.stored_lsn, Lsn(keepalive.flush_lsn))
            return self._moved_to(Lsn(keepalive.confirm_lsn))
        if not response.HasField("changes"):
            raise MalformedMessage(
                "a response of the service is neither changes nor a keepalive",
                hint="The service is of a release that this client doesn't know; install the "
                "client of that release.",
            )
        assert self._assembly is not None
        changes = response.changes
        items: list[Item] = list(self._assembly.feed(changes))
        if items:
            self._attempts = 0
        for item in items:
            if isinstance(item, Transaction):
                self.resume_lsn = max(self.resume_lsn, item.end_lsn)
        items += self._moved_to(Lsn(changes.confirm_lsn))
        if changes.final:
            items.append(Final_())
        return items

    def _moved_to(self, confirm_lsn: Lsn) -> list[Item]:
        self.resume_lsn = max(self.resume_lsn, confirm_lsn)
        return [Mark(confirm_lsn)] if confirm_lsn else []

    # ---- the loop

    def came_back(self) -> None:
        """Count what the loop was given as handled: it asks for more."""
        if self.settings.feedback == "auto":
            self.flush_lsn = max(self.flush_lsn, self._given_lsn)
            self._is_open = False

    def give(
        self, item: Item, *, wants_progress: bool, is_last: bool
    ) -> Transaction | Batch | Progress | None:
        """Hand over an item of the queue; None if it is nothing for the loop.

        Args:
            item: anything but :class:`Final_`.
            wants_progress: the loop is one over events.
            is_last: nothing is in the queue behind it.
        """
        if isinstance(item, Transaction | Batch):
            self._given_lsn = max(self._given_lsn, item.end_lsn)
            self._is_open = True
            return item
        assert isinstance(item, Mark)
        if wants_progress:
            now_s = time.monotonic()
            is_due = now_s - self._progress_at_s >= self.settings.confirm_seconds
            if not (is_last and is_due and item.lsn > self._given_lsn):
                return None
            self._progress_at_s = now_s
            self._given_lsn = item.lsn
            self._is_open = True
            return Progress(item.lsn)
        if not self.keeps_position:
            if not self._is_open and self._given_lsn <= self.flush_lsn:
                self.flush_lsn = max(self.flush_lsn, item.lsn)
            elif self._marks and self._marks[-1][0] == self._given_lsn:
                self._marks[-1] = (self._given_lsn, item.lsn)
            else:
                self._marks.append((self._given_lsn, item.lsn))
        return None

    def confirm(self, upto: Transaction | Batch | Progress | int) -> None:
        """Count everything up to and with *upto* as handled.

        Raises:
            InvalidUse: it was not given yet.
        """
        lsn = Lsn(upto) if isinstance(upto, int) else upto.end_lsn
        if lsn > max(self._given_lsn, self.flush_lsn):
            raise InvalidUse(
                f"{lsn} can't be confirmed: the loop was given everything before {self._given_lsn} "
                "only",
                hint="Confirm a transaction that the loop was given, or its end_lsn.",
            )
        self.flush_lsn = max(self.flush_lsn, lsn)
        while self._marks and self._marks[0][0] <= lsn:
            self.flush_lsn = max(self.flush_lsn, self._marks.popleft()[1])
        if lsn >= self._given_lsn:
            self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether something was given that is not handled: a new loop begins with it."""
        return self._is_open

    def rewind(self) -> None:
        """Go back to what is handled, for a loop that is begun anew."""
        self.resume_lsn = max(self.flush_lsn, self._first_lsn)
        self._given_lsn = self.flush_lsn
        self._is_open = False
        self._marks.clear()
        if self._assembly is not None:
            self._assembly.rewound()

    # ---- feedback

    def feedback(self, *, reply_requested: bool = False) -> change_stream_pb2.StreamRequest:
        """Make a feedback message of what is handled."""
        return change_stream_pb2.StreamRequest(
            feedback=change_stream_pb2.Feedback(
                write_lsn=self.flush_lsn,
                flush_lsn=self.flush_lsn,
                apply_lsn=self.flush_lsn,
                reply_requested=reply_requested,
            )
        )

    def check_plugin(self, plugin: str) -> None:
        """See that the loop is one for what the slot gives.

        Raises:
            WrongPlugin: it is not.
        """
        if self.plugin != plugin:
            loop = "batches()" if self.plugin == "arrow" else "transactions()"
            raise WrongPlugin(
                f"slot {self.settings.name} has the plugin {self.plugin}",
                hint=f"Loop over its {loop}, or make a slot with the plugin {plugin}.",
                slot=self.settings.name,
                plugin=self.plugin,
            )


#: As PostgreSQL's defGetBoolean reads an option.
_FALSE: Final = ("off", "false", "0")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
