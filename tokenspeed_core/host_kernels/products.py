# SPDX-License-Identifier: MIT
"""Products of rows with a weight, in bfloat16.

A few rows are as fast as their weight is read, and it is read once, in order. Many are as fast as
the processor multiplies.
"""

from __future__ import annotations

from functools import cache

from tokenspeed_core.host_kernels.pair_tiles import MOST_ROWS, multiply_tile
from tokenspeed_core.host_kernels.team import Kernel, arguments_at, own_share

# Rows that are multiplied with a block before the next block is read, so that it comes from memory
# once for so many. Threads share pairs of a block and such a group.
GROUP_ROWS = 64


@cache
def bfloat16_product() -> Kernel:
    """x W^T + b, where a row's sums do not depend on the others.

    Arguments: as `multiply_tile` has them, and the number of rows.
    """

    def multiply(address: int) -> None:
        blocks, rows = arguments_at(address)[5:7]
        groups = -(-rows // GROUP_ROWS)
        first, last = own_share(blocks * groups)
        for item in range(first, last):
            block, row = item // groups, item % groups * GROUP_ROWS
            end = min(rows, row + GROUP_ROWS)
            while row < end:
                count = min(MOST_ROWS, end - row)
                multiply_tile(address, block, row, count)
                row += count

    return Kernel(multiply, num_arguments=7)
