# SPDX-License-Identifier: MIT
"""Products of rows with a weight, in bfloat16.

A few rows are as fast as their weight is read, so it is read once, in order. Many are as fast as
the processor multiplies.
"""

from __future__ import annotations

from functools import cache

from tokenspeed_core.host_kernels.pair_tiles import MOST_ROWS, tile
from tokenspeed_core.host_kernels.team import Kernel, arguments_at, own_share

# Rows that are multiplied with a block before the next is read: both stay in the nearest caches.
# Threads share pairs of a block and such a group.
GROUP_ROWS = 64


@cache
def bfloat16_product() -> Kernel:
    """x W^T + b, where a row's sums do not depend on the others.

    Arguments: as `pair_tiles.tile` has them, and the number of rows.
    """
    assert MOST_ROWS == 8, "tiles from the largest to a single row"
    eight, four, two, one = tile(8), tile(4), tile(2), tile(1)

    def multiply(address: int) -> None:
        blocks, rows = arguments_at(address)[5:7]
        groups = -(-rows // GROUP_ROWS)
        first, last = own_share(blocks * groups)
        for item in range(first, last):
            block, row = item // groups, item % groups * GROUP_ROWS
            end = min(rows, row + GROUP_ROWS)
            while row + 8 <= end:
                eight(address, block, row)
                row += 8
            if row + 4 <= end:
                four(address, block, row)
                row += 4
            if row + 2 <= end:
                two(address, block, row)
                row += 2
            if row < end:
                one(address, block, row)

    return Kernel(multiply, num_arguments=7)
