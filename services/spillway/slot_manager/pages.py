"""The contract for a person with a browser, at ``/docs``: in the admin UI's shell where there is
one, and a page of its own otherwise.

HTML made here, with nothing to fetch from elsewhere: the service often runs where there is no way
out.
"""

import json
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

if TYPE_CHECKING:
    from spillway.slot_manager import guard

router = APIRouter(include_in_schema=False)

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; }
th, td { vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6rem; background: #8881; }
.bad { color: #c22; } .faint { opacity: .65; }
"""

_SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
}


@router.get("/docs", response_class=HTMLResponse, response_model=None)
async def docs(request: Request) -> Response:
    """Show the REST contract."""
    document: dict[str, Any] = request.app.openapi()
    body = _contract(document)
    shell: guard.Pages | None = request.app.state.admin
    if shell is not None:
        return shell.in_shell(request, "API", body)
    return _page("Spillway API", f"<h1>Spillway API</h1>{body}")


def _contract(document: dict[str, Any]) -> str:
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = next(iter(operation.get("tags", ())), "service")
            by_tag.setdefault(tag, []).append((method, path, operation))
    parts = [
        f"<p>{escape(document['info']['description'])}</p>",
        '<p>The same as a document for programs: <a href="/openapi.json">openapi.json</a>.</p>',
        '<nav aria-label="Calls"><ul>',
        *(f'<li><a href="#of-{escape(tag)}">{escape(tag)}</a></li>' for tag in by_tag),
        '<li><a href="#bodies">bodies</a></li></ul></nav>',
    ]
    for tag, found in by_tag.items():
        parts.append(f'<h2 id="of-{escape(tag)}">{escape(tag.capitalize())}</h2>')
        parts += [f"<section>{_operation(*one)}</section>" for one in found]
    parts.append('<h2 id="bodies">Bodies</h2>')
    for name, schema in document["components"]["schemas"].items():
        parts.append(
            f"<details><summary><code>{escape(name)}</code></summary>"
            f'<pre tabindex="0" id="{escape(name)}">'
            f"{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre></details>"
        )
    return "".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    called = f'<span class="op {escape(method)}">{method.upper()}</span>'
    parts = [f"<h3>{called} <code>{escape(path)}</code></h3>"]
    parts.append(f"<p>{escape(operation.get('description', operation['summary']))}</p>")
    if parameters := operation.get("parameters"):
        rows = (
            (
                f"<code>{escape(parameter['name'])}</code>",
                parameter["in"] + (", required" if parameter.get("required") else ""),
                escape(parameter.get("description", "")),
            )
            for parameter in parameters
        )
        parts.append(_table(("parameter", "in", "what it is"), rows))
    takes = _reference(operation.get("requestBody", {}))
    gives = [
        f"{status} {_reference(response)}".strip()
        for status, response in operation["responses"].items()
    ]
    if takes:
        parts.append(f"<p>Takes {takes}.</p>")
    parts.append(f"<p>Gives {', '.join(gives)}.</p>")
    return "".join(parts)


def _reference(holder: dict[str, Any]) -> str:
    for content in holder.get("content", {}).values():
        schema = content.get("schema", {})
        for option in (schema, *schema.get("anyOf", ())):
            if reference := option.get("$ref"):
                name = escape(reference.rpartition("/")[2])
                return f'<a href="#{name}">{name}</a>'
    return ""


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="table-wrap"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _page(title: str, body: str) -> HTMLResponse:
    return HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><body>{body}</body></html>",
        headers=_SECURITY_HEADERS,
    )
