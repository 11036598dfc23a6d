"""The admin UI in a real browser, against a real service and a real PostgreSQL: one of each for all
of them.

A package, so that the browser ends before other tests begin in the same process: while Playwright's
synchronous interface is in use, the thread has a running event loop.
"""
