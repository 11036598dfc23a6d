"""Hints in the words of the interface that shows them.

An error doesn't know who will read it: the same one goes into a problem document, to the command
line and onto a page. So a hint refers to an action by its name in the REST contract,
``GET /v1/sources`` for one, and to an argument by its name there, and whoever shows it words that
for its users: REST and gRPC pass hints on as they are, the command line puts them through
:func:`for_commands` where it prints errors, the admin UI through :func:`for_pages`.

:data:`ACTIONS` is the table. A test goes through all hints of the code and fails where one, in
either wording, still speaks REST; another holds the calls against the contract and the commands
against the command line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Action:
    """One call of REST, as the command line and the admin UI have it.

    In braces is what stands in the path or in the query; a hint may have it as it is, or a name of
    its own in its place.
    """

    call: str
    #: the command, without ``spillway``
    command: str
    #: what a page calls the place where it is done
    page: str


ACTIONS: Final = (
    Action("GET /v1/sources", "source list", "the overview"),
    Action("POST /v1/sources", "source add", "“Add source” on the overview"),
    Action("GET /v1/sources/{source}", "source show {source}", "the source's page"),
    Action(
        "GET /v1/sources/{source}/tables?database={database}",
        "source tables {source} --database {database}",
        "the list of tables on the source's page",
    ),
    Action("PATCH /v1/sources/{source}", "source alter {source}", "“Alter” on the source's page"),
    Action("DELETE /v1/sources/{source}", "source drop {source}", "“Drop” on the source's page"),
    Action(
        "DELETE /v1/sources/{source}?keep_slot=true",
        "source drop {source} --keep-slot",
        "“Drop” on the source's page, with the server marked as gone,",
    ),
    Action(
        "GET /v1/publications?source={source}&database={database}",
        "source publications {source} --database {database}",
        "the form of a new subscription",
    ),
    Action("GET /v1/plugins", "slot create --help", "the form of a new slot"),
    Action("GET /v1/slots", "slot list", "the overview"),
    Action("POST /v1/slots", "slot create", "“Create slot” on the overview"),
    Action("GET /v1/slots/{slot}", "slot show {slot}", "the slot's page"),
    Action("PATCH /v1/slots/{slot}", "slot alter {slot}", "“Alter” on the slot's page"),
    Action("DELETE /v1/slots/{slot}", "slot drop {slot}", "“Drop” on the slot's page"),
    Action("GET /v1/slots/{slot}/peek", "slot peek {slot}", "“Peek” on the slot's page"),
    Action("POST /v1/slots/{slot}/get", "slot get {slot}", "“Peek” on the slot's page"),
    Action("POST /v1/slots/{slot}/advance", "slot advance {slot}", "“Advance” on the slot's page"),
    Action("POST /v1/slots/{slot}/rewind", "slot rewind {slot}", "“Rewind” on the slot's page"),
    Action("POST /v1/slots/{slot}/copy", "slot copy {slot}", "“Copy” on the slot's page"),
    Action(
        "POST /v1/slots/{slot}/end-session",
        "slot end-session {slot}",
        "“End session” on the slot's page",
    ),
    Action(
        "POST /v1/slots/{slot}/snapshot",
        "slot snapshot {slot}",
        "the command line (spillway slot snapshot)",
    ),
    Action(
        "GET /v1/slots/{slot}/snapshot",
        "slot snapshot {slot} --show",
        "the command line (spillway slot snapshot --show)",
    ),
    Action(
        "DELETE /v1/slots/{slot}/snapshot",
        "slot snapshot {slot} --release",
        "the command line (spillway slot snapshot --release)",
    ),
    Action("GET /v1/slots/{slot}/stats", "slot stats {slot}", "the slot's page"),
    Action("GET /v1/subscriptions", "subscription list", "the overview"),
    Action(
        "POST /v1/subscriptions", "subscription create", "“Create subscription” on the overview"
    ),
    Action(
        "GET /v1/subscriptions/{subscription}",
        "subscription show {subscription}",
        "the subscription's page",
    ),
    Action(
        "PATCH /v1/subscriptions/{subscription}",
        "subscription alter {subscription}",
        "“Alter” on the subscription's page",
    ),
    Action(
        "DELETE /v1/subscriptions/{subscription}",
        "subscription drop {subscription}",
        "“Drop” on the subscription's page",
    ),
    Action(
        "POST /v1/subscriptions/{subscription}/refresh",
        "subscription refresh {subscription}",
        "“Refresh” on the subscription's page",
    ),
    Action(
        "GET /v1/subscriptions/{subscription}/log",
        "subscription log {subscription}",
        "the log on the subscription's page",
    ),
    Action(
        "GET /v1/subscriptions/{subscription}/conflicts",
        "subscription conflicts {subscription}",
        "the list of conflicts on the subscription's page",
    ),
    Action(
        "POST /v1/subscriptions/{subscription}/tables/{table}/resync",
        "subscription resync-table {subscription} {table}",
        "“Load anew” at the table {table} on the subscription's page",
    ),
    Action(
        "POST /v1/subscriptions/{subscription}/tables/{table}/cancel-resync",
        "subscription cancel-resync {subscription} {table}",
        "“Take it back” at the table {table} on the subscription's page",
    ),
    Action(
        "POST /v1/subscriptions/{subscription}/verify",
        "subscription verify {subscription}",
        "“Verify” on the subscription's page",
    ),
    # Users have no pages.
    Action("GET /v1/users", "user list", "the command spillway user list"),
    Action("POST /v1/users", "user create", "the command spillway user create"),
    Action("GET /v1/events", "event list", "the page Events"),
    Action("GET /v1/alerts", "alert list", "the page Alerts"),
    Action("GET /v1/alerts/messages", "alert messages", "the list of messages on the page Alerts"),
    Action("GET /v1/alerts/rules", "alert rule list", "the page Alerts"),
    Action("PUT /v1/alerts/rules/{rule}", "alert rule set {rule}", "“Add rule” on the page Alerts"),
    Action("DELETE /v1/alerts/rules/{rule}", "alert rule drop {rule}", "“Drop” on the rule's page"),
    Action("GET /v1/alerts/channels", "alert channel list", "the page Alerts"),
    Action(
        "PUT /v1/alerts/channels/{channel}",
        "alert channel set {channel}",
        "“Add channel” on the page Alerts",
    ),
    Action(
        "POST /v1/alerts/channels/{channel}/test",
        "alert channel test {channel}",
        "“Test” on the page Alerts",
    ),
)

#: A call in a hint: the mark that ends a sentence is no part of it.
_CALL: Final = re.compile(r"\b(?:GET|POST|PUT|PATCH|DELETE) /v1/[^\s,;:]*[^\s,;:.?!)]")
_IN_BRACES: Final = re.compile(r"\\\{(\w+)\\\}")

_HELP: Final = "--help says what the command takes"
#: What hints say of a request itself: for the command line, for pages.
_PHRASES: Final = (
    (
        re.compile(r"Send the service's SPILLWAY_TOKEN in the (?:header|metadata) \S+: Bearer …\."),
        "Set SPILLWAY_TOKEN to the service's token.",
        "Sign in with the service's token.",
    ),
    (
        re.compile(r"/docs (?:describes what the call takes|lists what there is)"),
        _HELP,
        "look at the form again",
    ),
    (
        re.compile(r"This call takes no query parameters\."),
        f"{_HELP}.",
        "Reload the page and try again.",
    ),
    (re.compile(r"\bupto_nchanges\b"), "--upto-nchanges", "a number of changes"),
    (re.compile(r"\bupto_lsn\b"), "--upto-lsn", "a position"),
    (re.compile(r"\boptions\.NAME=VALUE"), "--option NAME=VALUE", "options"),
    (re.compile(r"\bin iceberg_catalog\b"), "with --iceberg-catalog", "under “Catalog”"),
    (re.compile(r"\btwo_phase\b"), "two-phase", "two-phase"),
    (
        re.compile(r'with capture \{"origin": "none"\}'),
        "with --origin none",
        "which captures only what has no origin",
    ),
)


def for_commands(hint: str) -> str:
    """Word a hint for whoever typed a command."""
    for pattern, command, _ in _PHRASES:
        hint = pattern.sub(command, hint)
    return _CALL.sub(lambda found: _worded(found[0], _command), hint)


def for_pages(hint: str) -> str:
    """Word a hint for whoever reads it in the admin UI."""
    for pattern, _, page in _PHRASES:
        hint = pattern.sub(page, hint)

    def place(found: re.Match[str]) -> str:
        worded = _worded(found[0], lambda action: action.page)
        before = found.string[: found.start()].rstrip()
        # Where the call began a sentence, the place does.
        begins = not before or before.endswith((".", "?", "!"))
        return worded[:1].upper() + worded[1:] if begins else worded

    return _CALL.sub(place, hint)


def _command(action: Action) -> str:
    return f"`spillway {action.command}`"


def _worded(call: str, word: Callable[[Action], str]) -> str:
    for action in ACTIONS:
        pattern = _IN_BRACES.sub(r"(?P<\1>[^/?&]+)", re.escape(action.call))
        if found := re.fullmatch(pattern, call):
            worded = word(action)
            for name, value in found.groupdict().items():
                worded = worded.replace(f"{{{name}}}", value)
            return worded
    return call
