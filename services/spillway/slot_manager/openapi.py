"""Write the REST contract: ``python -m spillway.slot_manager.openapi >
openapi/spillway-v1.json``.
"""

import json
import sys
from typing import TYPE_CHECKING, cast

from spillway.slot_manager.app import create_app, openapi_document

if TYPE_CHECKING:
    from spillway.service.interface import EngineInterface
    from spillway.subscriber.interface import SubscriptionInterface


def contract() -> str:
    """Give the contract as the file has it."""
    # No call is made: the document depends on the routes alone.
    app = create_app(
        cast("EngineInterface", None), cast("SubscriptionInterface", None), token=None, version=""
    )
    return json.dumps(openapi_document(app), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(contract())
