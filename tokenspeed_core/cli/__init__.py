# SPDX-License-Identifier: MIT
"""The `tokenspeed` command: a module a subcommand."""
