# SPDX-License-Identifier: MIT
"""Where requests come from and outputs go."""
