# SPDX-License-Identifier: MIT
"""What a checkpoint is, by what is in it: never where it lies, or what it is called.

All bytes count. A sample of them would take two fine-tunings of one model for the same.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from tokenspeed_core.models.weights import WeightSource


def fingerprint(weights: WeightSource) -> str:
    """SHA-256 over names, number formats, shapes and bytes of all tensors, in the names' order.

    Each tensor is digested on its own, so that all cores read at a time.
    """
    names = sorted(weights.shapes)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = pool.map(_digest, map(weights.load, names))
        whole = hashlib.sha256()
        for name, digest in zip(names, digests, strict=True):
            whole.update(f"{name}\n{digest}\n".encode())
    return whole.hexdigest()


def _digest(tensor: Tensor) -> str:
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
