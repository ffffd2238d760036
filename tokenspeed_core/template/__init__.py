# SPDX-License-Identifier: MIT
"""A package for a new plugin: written whole, it installs and passes its own tests at once."""
