# SPDX-License-Identifier: MIT
"""The contract between the engine and its plugins."""
