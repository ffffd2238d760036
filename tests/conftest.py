# SPDX-License-Identifier: MIT
"""Nothing but what every test of the core needs; fakes and fixtures live in the kit."""
