# SPDX-License-Identifier: MIT
"""A prefix cache behind the host tier, in a store that engines share. The plugin is `plugin.py`."""
