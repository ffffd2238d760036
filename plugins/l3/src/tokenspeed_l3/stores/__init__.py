# SPDX-License-Identifier: MIT
"""The stores of this package, a file each."""
