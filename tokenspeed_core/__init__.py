# SPDX-License-Identifier: MIT
"""The engine: one scheduling round after another, composed from plugins."""
