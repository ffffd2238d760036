# SPDX-License-Identifier: MIT
"""Which prefixes an engine caches, told to routers. The plugin is in `plugin.py`."""
