"""Templates: everything that is put into them is escaped, and what they name must be there."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import jinja2
from starlette.responses import HTMLResponse

from spillway import amounts
from spillway.admin import explanations, formats
from spillway.admin.forms import typed_time
from spillway.admin.live import SILENCE_S
from spillway.declarations.slot_columns import page_columns
from spillway.subscriber.stats import CONFLICT_KINDS
from spillway.wording import for_pages

if TYPE_CHECKING:
    from starlette.requests import Request

STATIC: Final = resources.files("spillway.admin") / "static"


class Pages:
    """The templates, and what all of them know."""

    def __init__(self, version: str) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("spillway.admin"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        times = ("short_time", "when", "ago", "timed")
        names = ("rate", "count", "major", "assignments", "per_second", *times)
        self._environment.filters.update({name: getattr(formats, name) for name in names})
        shared = ("size", "duration", "since", "moment")
        self._environment.filters.update({name: getattr(amounts, name) for name in shared})
        self._environment.filters["for_pages"] = for_pages
        self._environment.filters["typed_time"] = typed_time
        self._environment.tests["code"] = formats.is_code
        self._environment.globals.update(
            version=version,
            silence_s=SILENCE_S,
            static=_static_url,
            sparkline=formats.sparkline,
            explain=explanations.SLOT,
            slot_columns=page_columns(),
            dash=amounts.DASH,
            sync_states=explanations.SYNC_STATES,
            subscription_states=explanations.SUBSCRIPTION_STATES,
            conflict_kinds=CONFLICT_KINDS,
        )
        # After what its macros use.
        self._environment.globals["ui"] = self._environment.get_template("parts/macros.html").module

    def text(self, template: str, **values: Any) -> str:
        """Render a part of a page."""
        return self._environment.get_template(template).render(**values)

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Render a page."""
        text = self.text(
            template,
            path=request.scope["path"],
            csrf=getattr(request.state, "csrf", ""),
            is_inside=getattr(request.state, "is_inside", False),
            can_log_out=getattr(request.state, "can_log_out", False),
            **values,
        )
        return HTMLResponse(text, status_code=status)


@functools.cache
def _static_url(name: str) -> str:
    """Name a static file by its content, so that browsers may keep it for ever."""
    content = STATIC.joinpath(*name.split("/")).read_bytes()
    return f"/ui/static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"
