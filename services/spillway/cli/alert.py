"""``spillway alert``: REST's calls on alerts: what is wrong, who is told, and where.

A secret is read where others don't see it: from the terminal or from stdin.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from spillway.cli import completion
from spillway.cli.answer import Answer, Columns, Rows
from spillway.cli.confirmation import Yes, confirm
from spillway.cli.connection import call
from spillway.cli.output import record, shows
from spillway.errors import InvalidRequest

app = typer.Typer(help="Look at alerts, and say who is told what, and where.", no_args_is_help=True)
rule_app = typer.Typer(help="Say what is told, and to which channels.", no_args_is_help=True)
channel_app = typer.Typer(help="Say where alerts are told.", no_args_is_help=True)
app.add_typer(rule_app, name="rule")
app.add_typer(channel_app, name="channel")

Rule = Annotated[
    str,
    typer.Argument(metavar="RULE", help="The rule's name.", autocompletion=completion.alert_rules),
]
Channel = Annotated[
    str,
    typer.Argument(
        metavar="CHANNEL", help="The channel's name.", autocompletion=completion.alert_channels
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many.")]

_ALERTS: Final = Columns(
    names=("id", "state", "severity", "title", "rule", "fired_at", "resolved_at", "told"),
    ranked=("id", "state", "title", "severity", "fired_at", "rule", "resolved_at"),
    sentences=("title",),
)
_MESSAGES: Final = Columns(
    names=("id", "state", "channel", "reason", "title", "attempts", "error", "created_at"),
    ranked=("id", "state", "channel", "title", "reason", "error", "created_at"),
    sentences=("title", "error"),
)
_RULES: Final = Columns(
    names=("name", "enabled", "codes", "sources", "severity", "hold_s", "channels", "quiet"),
    ranked=("name", "enabled", "channels", "codes"),
)
_CODES: Final = Columns(
    names=("code", "meaning"), ranked=("code", "meaning"), sentences=("meaning",)
)
_CHANNELS: Final = Columns(
    names=("name", "kind", "enabled", "url", "host", "to", "secrets"),
    ranked=("name", "kind", "enabled", "url"),
)
#: What each kind keeps to itself, when one secret is given.
_SECRET: Final = {"webhook": "secret", "slack": "url", "email": "password"}


@app.command("list")
@shows(watch=True)
def list_alerts(
    state: Annotated[str | None, typer.Option(help="pending, firing or resolved.")] = None,
    limit: Limit = 50,
) -> Answer:
    """List what rules have found, the newest first."""
    answer = call("GET", "alerts", query=_query(state, limit))
    return _listed(answer, answer["alerts"], "id", _ALERTS)


@app.command()
@shows(watch=True)
def messages(
    state: Annotated[str | None, typer.Option(help="waiting, sent or failed.")] = None,
    limit: Limit = 50,
) -> Answer:
    """List what was sent to channels, or waits, or was not taken; the newest first."""
    answer = call("GET", "alerts", "messages", query=_query(state, limit))
    return _listed(answer, answer["messages"], "id", _MESSAGES)


@rule_app.command("list")
@shows(watch=True)
def list_rules() -> Answer:
    """List the rules."""
    answer = call("GET", "alerts", "rules")
    return _listed(answer, answer["rules"], "name", _RULES)


@rule_app.command()
@shows()
def codes() -> Answer:
    """List what may be wrong: the codes that a rule may name."""
    found = call("GET", "alerts", "rules")["codes"]
    rows = [{"code": code, "meaning": meaning} for code, meaning in found.items()]
    return _listed(found, rows, "code", _CODES)


@rule_app.command("show")
@shows()
def show_rule(name: Rule) -> Answer:
    """Show a rule."""
    return record(call("GET", "alerts", "rules", name), name)


@rule_app.command("set")
@shows()
def set_rule(
    name: Rule,
    channel: Annotated[
        list[str] | None,
        typer.Option(
            help="Tell this channel; may be repeated.", autocompletion=completion.alert_channels
        ),
    ] = None,
    code: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this (`alert rule codes`); may be repeated; all unless named.",
            autocompletion=completion.alert_codes,
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="Only of this source; may be repeated.", autocompletion=completion.sources
        ),
    ] = None,
    subject: Annotated[
        list[str] | None, typer.Option(help="Only what fits this pattern; may be repeated.")
    ] = None,
    severity: Annotated[
        str, typer.Option(help="warn: everything; bad: what stands still.")
    ] = "warn",
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=NUMBER", help="lag_s=60 for one; may be repeated."),
    ] = None,
    hold: Annotated[int, typer.Option(min=0, help="Seconds that it must last.")] = 0,
    clear: Annotated[int, typer.Option(min=0, help="Seconds that it must be over.")] = 60,
    repeat: Annotated[
        int, typer.Option(min=0, help="Told again after so many seconds; 0: never.")
    ] = 14_400,
    quiet: Annotated[
        str | None, typer.Option(metavar="FROM-TO", help="Tell nobody then: 22:00-07:00.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Of --quiet, such as Europe/Vienna.")] = "UTC",
    disabled: Annotated[bool, typer.Option("--disabled", help="Tell nobody for now.")] = False,
) -> Answer:
    """Make a rule, or have it be so: what is not given is as by default."""
    body: dict[str, object] = {
        "enabled": not disabled,
        "channels": channel or [],
        "codes": code or None,
        "sources": source or None,
        "subjects": subject or None,
        "severity": severity,
        "limits": dict(map(_limit, limit or [])),
        "hold_s": hold,
        "clear_s": clear,
        "repeat_s": repeat,
        "quiet": _quiet(quiet, timezone),
    }
    return record(call("PUT", "alerts", "rules", name, body=body), name)


@rule_app.command("drop")
def drop_rule(name: Rule, yes: Yes = False) -> None:
    """Drop a rule; what it has found is over, and nobody is told."""
    confirm(f"Drop rule {name}? What it has found is over, and nobody is told.", yes=yes)
    call("DELETE", "alerts", "rules", name)


@channel_app.command("list")
@shows()
def list_channels() -> Answer:
    """List the channels, without their secrets."""
    answer = call("GET", "alerts", "channels")
    return _listed(answer, answer["channels"], "name", _CHANNELS)


@channel_app.command("show")
@shows()
def show_channel(name: Channel) -> Answer:
    """Show a channel, without its secrets."""
    return record(call("GET", "alerts", "channels", name), name)


@channel_app.command("set")
@shows()
def set_channel(
    name: Channel,
    kind: Annotated[str, typer.Option(help="webhook, slack or email.")],
    url: Annotated[str | None, typer.Option(help="Of a webhook: its address.")] = None,
    host: Annotated[str | None, typer.Option(help="Of email: the mail server.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of email.")] = None,
    security: Annotated[str | None, typer.Option(help="Of email: starttls, tls or none.")] = None,
    user: Annotated[str | None, typer.Option(help="Of email: who logs in.")] = None,
    sender: Annotated[str | None, typer.Option("--from", help="Of email: an address.")] = None,
    to: Annotated[
        list[str] | None, typer.Option(help="Of email: an address; may be repeated.")
    ] = None,
    ui_url: Annotated[
        str | None, typer.Option(help="Where people reach the admin UI, for links.")
    ] = None,
    ask_secret: Annotated[
        bool,
        typer.Option(
            "--secret",
            help="Ask for the secret: a webhook's key, Slack's address, an email's password.",
        ),
    ] = False,
    secret_stdin: Annotated[
        bool, typer.Option("--secret-stdin", help="Read that from stdin.")
    ] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Tell nobody for now.")] = False,
) -> Answer:
    """Make a channel, or have it be so; a secret that is not given stays."""
    given: dict[str, object] = {
        "url": url,
        "host": host,
        "port": port,
        "security": security,
        "user": user,
        "from": sender,
        "to": to,
        "ui_url": ui_url,
    }
    body = {"kind": kind, "enabled": not disabled}
    body |= {key: value for key, value in given.items() if value is not None}
    if ask_secret or secret_stdin:
        if kind not in _SECRET:
            raise InvalidRequest(f"kind is {kind!r}", hint=f"There are {', '.join(_SECRET)}.")
        body[_SECRET[kind]] = _read_secret(stdin=secret_stdin)
    return record(call("PUT", "alerts", "channels", name, body=body), name)


@channel_app.command("test")
def test_channel(name: Channel) -> None:
    """Send a test to a channel now, and say whether it was taken."""
    call("POST", "alerts", "channels", name, "test")
    typer.echo(f"{name} took it.")


@channel_app.command("drop")
def drop_channel(name: Channel, yes: Yes = False) -> None:
    """Drop a channel that no rule tells."""
    confirm(f"Drop channel {name}? Its secret is stored nowhere else.", yes=yes)
    call("DELETE", "alerts", "channels", name)


def _query(state: str | None, limit: int) -> dict[str, str | int]:
    return {"limit": limit} if state is None else {"limit": limit, "state": state}


def _limit(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        equals = ""
        number = 0.0
    if not equals or not name:
        raise InvalidRequest(f"--limit {text!r} is not NAME=NUMBER", hint="Write lag_s=60.")
    return name, number


def _quiet(text: str | None, timezone: str) -> dict[str, str] | None:
    if text is None:
        return None
    begin, dash, end = text.partition("-")
    if not dash:
        raise InvalidRequest(f"--quiet {text!r} is not FROM-TO", hint="Write 22:00-07:00.")
    return {"from": begin.strip(), "to": end.strip(), "timezone": timezone}


def _read_secret(*, stdin: bool) -> str:
    if stdin:
        return sys.stdin.readline().rstrip("\n")
    return str(typer.prompt("Secret", hide_input=True))


def _listed(answer: Any, rows: list[dict[str, Any]], name: str, columns: Columns) -> Answer:
    return Answer(answer, [str(row[name]) for row in rows], [Rows(rows, columns)])
