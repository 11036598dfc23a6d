"""How an extra is installed, for the hints of errors that miss one.

The distribution is named ``spillway-slots``, since ``spillway`` on PyPI is a stranger's package;
the command and the import keep their name. No release is on an index: what works today is a
checkout of the project, or a wheel that was built from one.
"""

from __future__ import annotations

from typing import Final

import spillway

DISTRIBUTION: Final = "spillway-slots"


def how_to_install(*extras: str) -> str:
    """Say in one sentence what to type so that *extras* are there."""
    names = ",".join(extras)
    wheel = f"{DISTRIBUTION.replace('-', '_')}-{spillway.__version__}-….whl"
    return (
        f"In a checkout of Spillway: make install, or pip install '.[{names}]'; "
        f"with a wheel that was built from it: pip install './{wheel}[{names}]'."
    )
