"""Prints the largest error of compressed sums beside the bound that each call returns, by format, values and size.

    farandole run -np 4 -- python bench/compression_errors.py

The exact sums are computed in longdouble. Rank 0 prints.
"""

import farandole
import numpy as np

FORMATS = ("int8", "int4", "float8_e4m3", "float8_e5m2", "bfloat16")


def values_of(kind, rank, count):
    random = np.random.default_rng([rank, count])
    if kind == "normal":
        return random.standard_normal(count).astype("float32")
    if kind == "heavy-tailed":
        return random.standard_t(3, count).astype("float32")
    halfway = np.full(count, 126.5, "float32")  # between two codes of int8
    halfway[::64] = 127
    return halfway


def main():
    farandole.init()
    rank, size = farandole.rank(), farandole.size()
    comm = farandole.Communicator()
    for kind in ("normal", "heavy-tailed", "halfway"):
        for count in (1000, 1_000_000):
            exact = sum(values_of(kind, one, count).astype("longdouble") for one in range(size))
            mine = values_of(kind, rank, count)
            for name in FORMATS:
                result = comm.allreduce(mine, compression=name)
                error = np.abs(result - exact).max()
                assert error <= comm.error_bound, (kind, count, name)
                if rank == 0:
                    print(f"{size} ranks  {kind:12} {count:8} values  {name:12} largest error {float(error):9.4f}  "
                          f"bound {comm.error_bound:9.4f}  largest sum {float(np.abs(exact).max()):9.2f}",
                          flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
