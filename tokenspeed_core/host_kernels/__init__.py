# SPDX-License-Identifier: MIT
"""The processor's own kernels, compiled at start: what torch needs many small operations for, and
products that its library computes more slowly.

A kernel is a Python function over addresses and counts that numba compiles. A row's result never
depends on the rows beside it, nor on the number of threads. Elsewhere than here nobody uses numba.
"""
