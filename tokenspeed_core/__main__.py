# SPDX-License-Identifier: MIT
"""`python -m tokenspeed_core` is the `tokenspeed` command."""

from __future__ import annotations

import sys

from tokenspeed_core.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
