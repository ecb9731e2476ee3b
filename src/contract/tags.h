// A tag of a collective's slices has a hash of the call's arguments, and in its low bits the compression, so that the
// transport that finds a difference can name what both ranks asked for.
#pragma once

#include <cstdint>
#include <string>

#include "data/compression.h"

namespace fdl {

inline constexpr int kCompressionBits = 3;
static_assert(kCompressionCount <= 1 << kCompressionBits);

constexpr uint32_t make_tag(uint32_t hash, Compression compression) {
  return hash << kCompressionBits | static_cast<uint32_t>(compression);
}

// "; rank 1 compresses to int8, rank 0 does not compress", or nothing if the compressions are equal.
inline std::string describe_compressions(const std::string& sender, uint32_t sent, const std::string& receiver,
                                         uint32_t expected) {
  const auto words = [](const std::string& rank, uint32_t tag) {
    const auto compression = static_cast<Compression>(tag & ((1u << kCompressionBits) - 1));
    if (compression == Compression::none) return rank + " does not compress";
    return rank + " compresses to " + std::string(name_of(compression));
  };
  const uint32_t differing = (sent ^ expected) & ((1u << kCompressionBits) - 1);
  if (differing == 0) return {};
  return "; " + words(sender, sent) + ", " + words(receiver, expected);
}

}  // namespace fdl
