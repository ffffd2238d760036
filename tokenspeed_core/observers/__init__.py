# SPDX-License-Identifier: MIT
"""The built-in observers: plugins like any other, written against the contract alone."""
