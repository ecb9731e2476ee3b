// This header lets nvcc compile kernel bodies for a device and the C++ compiler compile them for the CPU, where tests
// run them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"

// FDL_BOTH marks functions for host and device. The unroll macros control loops on the device only.
#ifdef __CUDACC__
#define FDL_BOTH __host__ __device__ __forceinline__
#define FDL_UNROLL _Pragma("unroll")
#define FDL_UNROLL_NOT _Pragma("unroll 1")
#else
#define FDL_BOTH inline
#define FDL_UNROLL
#define FDL_UNROLL_NOT
#endif

namespace fdl::cuda {

// std::bit_cast, for device code.
template <class To, class From>
FDL_BOTH To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// The bytes that one instruction moves. The address must be a multiple of the size.
template <std::size_t kBytes>
struct Unit;
template <>
struct alignas(16) Unit<16> {
  uint32_t words[4];
};
template <>
struct alignas(8) Unit<8> {
  uint32_t words[2];
};
template <>
struct Unit<4> {
  uint32_t words[1];
};
template <>
struct Unit<2> {
  uint16_t words[1];
};
template <>
struct Unit<1> {
  uint8_t words[1];
};

#ifndef __CUDA_ARCH__
// A device faults on a misaligned access. The CPU would accept it, so the tests check here.
template <std::size_t kBytes>
void expect_aligned(const std::byte* address) {
  FDL_CHECK(reinterpret_cast<uintptr_t>(address) % kBytes == 0);
}
#endif

template <std::size_t kBytes>
FDL_BOTH Unit<kBytes> load_unit(const std::byte* from) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(from));
  return *reinterpret_cast<const Unit<kBytes>*>(from);
#else
  expect_aligned<kBytes>(from);
  Unit<kBytes> unit;
  std::memcpy(&unit, from, kBytes);
  return unit;
#endif
}

template <std::size_t kBytes>
FDL_BOTH void store_unit(std::byte* to, const Unit<kBytes>& unit) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(to));
  *reinterpret_cast<Unit<kBytes>*>(to) = unit;
#else
  expect_aligned<kBytes>(to);
  std::memcpy(to, &unit, kBytes);
#endif
}

// kCount elements of type T in registers: 32-bit words, from which elements are extracted by shifts, because registers
// of a device have no addresses.
template <class T, int kCount>
struct Elements {
  static constexpr std::size_t kBytes = sizeof(T) * kCount;
  static constexpr std::size_t kUnit = kBytes >= 16 ? 16 : kBytes;
  static constexpr std::size_t kWords = kBytes < 4 ? 1 : kBytes / 4;
  static constexpr int kPerWord = sizeof(T) < 4 ? 4 / sizeof(T) : 1;

  uint32_t words[kWords] = {};

  FDL_BOTH void load(const std::byte* from) {
    FDL_UNROLL
    for (std::size_t i = 0; i < kBytes / kUnit; ++i) {
      const Unit<kUnit> unit = load_unit<kUnit>(from + i * kUnit);
      FDL_UNROLL
      for (std::size_t j = 0; j < kWords * kUnit / kBytes; ++j) words[i * (kUnit / 4) + j] = unit.words[j];
    }
  }

  FDL_BOTH void store(std::byte* to) const {
    FDL_UNROLL
    for (std::size_t i = 0; i < kBytes / kUnit; ++i) {
      Unit<kUnit> unit;
      FDL_UNROLL
      for (std::size_t j = 0; j < kWords * kUnit / kBytes; ++j) {
        unit.words[j] = static_cast<decltype(+unit.words[0])>(words[i * (kUnit / 4) + j]);
      }
      store_unit<kUnit>(to + i * kUnit, unit);
    }
  }

  // Element i. `i` must be a constant after unrolling, so that the words stay in registers.
  FDL_BOTH T get(int i) const {
    if constexpr (sizeof(T) == 8) {
      return bits_as<T>(static_cast<uint64_t>(words[2 * i]) | static_cast<uint64_t>(words[2 * i + 1]) << 32);
    } else if constexpr (sizeof(T) == 4) {
      return bits_as<T>(words[i]);
    } else {
      return static_cast<T>(words[i / kPerWord] >> (i % kPerWord * static_cast<int>(sizeof(T)) * 8));
    }
  }

  // Stores element i, which must be zero before.
  FDL_BOTH void put(int i, T value) {
    if constexpr (sizeof(T) == 8) {
      const auto bits = bits_as<uint64_t>(value);
      words[2 * i] = static_cast<uint32_t>(bits);
      words[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
    } else if constexpr (sizeof(T) == 4) {
      words[i] = bits_as<uint32_t>(value);
    } else {
      constexpr uint32_t kMask = (uint32_t{1} << (8 * sizeof(T))) - 1;
      words[i / kPerWord] |= (static_cast<uint32_t>(value) & kMask) << (i % kPerWord * static_cast<int>(sizeof(T)) * 8);
    }
  }
};

}  // namespace fdl::cuda
