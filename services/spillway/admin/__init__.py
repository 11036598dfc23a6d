"""The admin UI: pages for a person with a browser, over the same engine as REST and gRPC.

Server-rendered: routes gather what the engine says, templates make HTML of it, and a stream of
server-sent events replaces the parts of a page that changed. The browser needs three small
libraries, which are kept in ``static/vendor`` with their licences and checksums; it fetches nothing
from anywhere else, and a strict Content-Security-Policy holds it to that.

============== ===================================================================================
application    the ASGI application, its routes, what runs beside it
access         sessions, CSRF, headers: what stands before every page
live           server-sent events
rendering      templates and how values are written (``formats``)
*_pages        routes: overview, lists, sources, slots, and the forms that make them
flow           the overview's rows; ``listing`` is what a list is, ``palette`` what Ctrl-K finds
static         scripts and sheets: ``tokens.css`` has every size and colour
============== ===================================================================================
"""
