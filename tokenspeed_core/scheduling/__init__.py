# SPDX-License-Identifier: MIT
"""The scheduler driver: one module over the wheel, and the bookkeeping it keeps beside it."""
