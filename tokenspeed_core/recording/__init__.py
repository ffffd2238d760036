# SPDX-License-Identifier: MIT
"""What a rank's rounds took in, written down, and run again without device or peers."""
