// Bits compares results of a device bit for bit with those of the CPU, and counts the comparisons.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "data/dtype.h"

namespace gpu_bench {

// Random bytes that are numbers in every type and never NaN, because the bits of a NaN are unspecified.
// The mask clears bits 2 and 6 of each byte: an exponent never has all bits set. The lowest bit is set, so no value is
// zero.
inline std::vector<std::byte> numbers(std::size_t bytes, std::mt19937_64& random) {
  std::vector<std::byte> all(bytes);
  for (std::byte& byte : all) byte = static_cast<std::byte>((random() & 0xbb) | 1);
  return all;
}

struct Bits {
  int checks = 0;
  int wrong = 0;

  // Compares bit for bit except for the sign of a zero, which reduce.h leaves unspecified.
  void expect_equal(fdl::Dtype dtype, const std::vector<std::byte>& actual, const std::vector<std::byte>& expected,
                    const std::string& what) {
    ++checks;
    const std::size_t size = fdl::size_of(dtype);
    for (std::size_t at = 0; at < expected.size(); at += size) {
      if (std::memcmp(&actual[at], &expected[at], size) == 0) continue;
      uint64_t a = 0, b = 0;
      std::memcpy(&a, &actual[at], size);
      std::memcpy(&b, &expected[at], size);
      const uint64_t sign = uint64_t{1} << (8 * size - 1);
      if (fdl::is_real(dtype) && ((a | b) & ~sign) == 0) continue;  // other types have no signed zeros
      ++wrong;
      std::printf("WRONG  %s: element %zu is %llx, not %llx\n", what.c_str(), at / size,
                  static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
      return;
    }
  }
};

}  // namespace gpu_bench
