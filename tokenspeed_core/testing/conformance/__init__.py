# SPDX-License-Identifier: MIT
"""What every plugin must do, whoever wrote it: one check a module, and the report of them all."""
