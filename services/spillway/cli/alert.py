"""``spillway alert``: REST's calls on alerts: what is wrong, who is told, and where.

A secret is read where others don't see it: from the terminal or from stdin.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from spillway.cli.output import AsJson, print_json, print_record, print_table
from spillway.cli.rest_client import RestClient
from spillway.errors import InvalidRequest
from spillway.settings import Settings

app = typer.Typer(help="Look at alerts, and say who is told what, and where.", no_args_is_help=True)
rule_app = typer.Typer(help="Say what is told, and to which channels.", no_args_is_help=True)
channel_app = typer.Typer(help="Say where alerts are told.", no_args_is_help=True)
app.add_typer(rule_app, name="rule")
app.add_typer(channel_app, name="channel")

Rule = Annotated[str, typer.Argument(metavar="RULE", help="The rule's name.")]
Channel = Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many.")]

_ALERTS: Final = ("id", "state", "severity", "title", "rule", "fired_at", "resolved_at", "told")
_ALERTS_RANKED: Final = ("id", "state", "title", "severity", "fired_at", "rule", "resolved_at")
_MESSAGES: Final = ("id", "state", "channel", "reason", "title", "attempts", "error", "created_at")
_MESSAGES_RANKED: Final = ("id", "state", "channel", "title", "reason", "error", "created_at")
_RULES: Final = ("name", "enabled", "codes", "sources", "severity", "hold_s", "channels", "quiet")
_CHANNELS: Final = ("name", "kind", "enabled", "url", "host", "to", "secrets")
#: What each kind keeps to itself, when one secret is given.
_SECRET: Final = {"webhook": "secret", "slack": "url", "email": "password"}


@app.command("list")
def list_alerts(
    state: Annotated[str | None, typer.Option(help="pending, firing or resolved.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List what rules have found, the newest first."""
    answer = _call("GET", "alerts", query=_query(state, limit))
    if as_json:
        print_json(answer)
    else:
        print_table(answer["alerts"], _ALERTS, ranked=_ALERTS_RANKED, sentences=("title",))


@app.command()
def messages(
    state: Annotated[str | None, typer.Option(help="waiting, sent or failed.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List what was sent to channels, or waits, or was not taken; the newest first."""
    answer = _call("GET", "alerts", "messages", query=_query(state, limit))
    if as_json:
        print_json(answer)
    else:
        rows, sentences = answer["messages"], ("title", "error")
        print_table(rows, _MESSAGES, ranked=_MESSAGES_RANKED, sentences=sentences)


@rule_app.command("list")
def list_rules(as_json: AsJson = False) -> None:
    """List the rules."""
    answer = _call("GET", "alerts", "rules")
    if as_json:
        print_json(answer)
    else:
        print_table(answer["rules"], _RULES, ranked=("name", "enabled", "channels", "codes"))


@rule_app.command()
def codes(as_json: AsJson = False) -> None:
    """List what may be wrong: the codes that a rule may name."""
    found = _call("GET", "alerts", "rules")["codes"]
    if as_json:
        print_json(found)
    else:
        rows = [{"code": code, "meaning": meaning} for code, meaning in found.items()]
        print_table(rows, ("code", "meaning"), ranked=("code", "meaning"), sentences=("meaning",))


@rule_app.command("show")
def show_rule(name: Rule, as_json: AsJson = False) -> None:
    """Show a rule."""
    _show(_call("GET", "alerts", "rules", name), as_json=as_json)


@rule_app.command("set")
def set_rule(
    name: Rule,
    channel: Annotated[
        list[str] | None, typer.Option(help="Tell this channel; may be repeated.")
    ] = None,
    code: Annotated[
        list[str] | None,
        typer.Option(help="Only this (`alert rule codes`); may be repeated; all unless named."),
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="Only of this source; may be repeated.")
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
    as_json: AsJson = False,
) -> None:
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
    _show(_call("PUT", "alerts", "rules", name, body=body), as_json=as_json)


@rule_app.command("drop")
def drop_rule(name: Rule) -> None:
    """Drop a rule; what it has found is over, and nobody is told."""
    _call("DELETE", "alerts", "rules", name)


@channel_app.command("list")
def list_channels(as_json: AsJson = False) -> None:
    """List the channels, without their secrets."""
    answer = _call("GET", "alerts", "channels")
    if as_json:
        print_json(answer)
    else:
        print_table(answer["channels"], _CHANNELS, ranked=("name", "kind", "enabled", "url"))


@channel_app.command("show")
def show_channel(name: Channel, as_json: AsJson = False) -> None:
    """Show a channel, without its secrets."""
    _show(_call("GET", "alerts", "channels", name), as_json=as_json)


@channel_app.command("set")
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
    as_json: AsJson = False,
) -> None:
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
    _show(_call("PUT", "alerts", "channels", name, body=body), as_json=as_json)


@channel_app.command("test")
def test_channel(name: Channel) -> None:
    """Send a test to a channel now, and say whether it was taken."""
    _call("POST", "alerts", "channels", name, "test")
    typer.echo(f"{name} took it.")


@channel_app.command("drop")
def drop_channel(name: Channel) -> None:
    """Drop a channel that no rule tells."""
    _call("DELETE", "alerts", "channels", name)


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


def _call(method: str, *path: str, **arguments: Any) -> Any:
    with RestClient(Settings.from_environment()) as client:
        return client.call(method, *path, **arguments)


def _show(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_record(answer)
