"""``python -m spillway.cli``: the same as ``spillway``."""

import sys

from spillway.cli.program import main

sys.exit(main())
