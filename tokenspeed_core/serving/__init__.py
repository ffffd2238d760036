# SPDX-License-Identifier: MIT
"""A server: the front end in this process, each engine in a process of its own."""
