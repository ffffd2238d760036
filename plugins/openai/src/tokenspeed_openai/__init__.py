# SPDX-License-Identifier: MIT
"""An OpenAI-compatible HTTP front end."""
