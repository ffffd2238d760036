# SPDX-License-Identifier: MIT
"""The data plane that runs real models with torch, on a CPU or a CUDA device."""
