# SPDX-License-Identifier: MIT
"""An engine's numbers, for dashboards and for people. The plugin is in `plugin.py`."""
