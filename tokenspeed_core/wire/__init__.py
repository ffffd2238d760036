# SPDX-License-Identifier: MIT
"""The ZMQ wire between front ends and engines."""
