# SPDX-License-Identifier: MIT
"""From names and options to one rank's plugins, started, ordered and frozen."""
