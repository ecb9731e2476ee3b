// Bytes and ConstBytes are views of raw memory: writable and read-only. Neither owns the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace fdl {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// The results are views of the argument and live as long as its memory.
inline ConstBytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
inline std::string_view text_of(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Binary units: 1_MiB is 2^20 bytes.
constexpr std::size_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr std::size_t operator""_MiB(unsigned long long n) { return n << 20; }

// parts_of() returns the number of parts of `part` bytes that hold `bytes`. round_up() returns the next multiple of
// `unit`.
constexpr std::size_t parts_of(std::size_t bytes, std::size_t part) { return (bytes + part - 1) / part; }
constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return parts_of(bytes, unit) * unit; }

}  // namespace fdl
