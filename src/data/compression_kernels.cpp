// This file has the vectorised conversions of blocks, compiled once for each instruction set.
//
// Only operations with one correctly rounded result are used, and no product of two rounded numbers is added to
// anything (a compiler may contract that to a fused operation): the bits are the same for every instruction set.
#include "data/compression_kernels.h"

// kernels.h precedes Highway: it excludes instruction sets.
#include "data/kernels.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/compression_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "data/small_real_inl.h"
// clang-format on

#include <cstring>

#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace fdl::kernels {
namespace HWY_NAMESPACE {

constexpr std::size_t kLanes = hn::MaxLanes(DF());
constexpr std::size_t kVectors = kBlockElements / kLanes;
static_assert(kVectors % 2 == 0);  // int4 pairs the two halves of a block
using DU8 = hn::Rebind<uint8_t, DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
using DU32 = hn::ScalableTag<uint32_t>;

struct Values {
  HWY_INLINE Values() {}
  VF parts[kVectors];
};

HWY_INLINE const uint8_t* bytes_of(const std::byte* from) { return reinterpret_cast<const uint8_t*>(from); }
HWY_INLINE uint8_t* bytes_of(std::byte* to) { return reinterpret_cast<uint8_t*>(to); }

template <class VU32>
HWY_INLINE void store_low_bytes(VU32 words, std::byte* to) {
  hn::StoreU(hn::TruncateTo(DU8(), words), DU8(), bytes_of(to));
}
HWY_INLINE VI load_bytes(const std::byte* from) {
  return hn::BitCast(DI(), hn::PromoteTo(DU32(), hn::LoadU(DU8(), bytes_of(from))));
}

// ---- Codes: how quotients x / s become bytes and back ----

struct Int8Codes {
  static HWY_INLINE void store(const Values& quotients, std::byte* to) {
    const VF most = hn::Set(DF(), 127.0f);
    for (std::size_t i = 0; i < kVectors; ++i) {
      const VI codes = hn::NearestInt(hn::Max(hn::Min(quotients.parts[i], most), hn::Neg(most)));
      const hn::Rebind<int8_t, DF> d8;
      hn::StoreU(hn::DemoteTo(d8, codes), d8, reinterpret_cast<int8_t*>(to + i * kLanes));
    }
  }
  static HWY_INLINE VF load(const std::byte* from, std::size_t i) {
    const hn::Rebind<int8_t, DF> d8;
    const auto codes = hn::LoadU(d8, reinterpret_cast<const int8_t*>(from + i * kLanes));
    return hn::ConvertTo(DF(), hn::PromoteTo(DI(), codes));
  }
};

struct Int4Codes {
  static constexpr std::size_t kHalf = kVectors / 2;

  static HWY_INLINE void store(const Values& quotients, std::byte* to) {
    const VF most = hn::Set(DF(), 7.0f);
    const auto code = [&](std::size_t i) HWY_ATTR {
      return hn::NearestInt(hn::Max(hn::Min(quotients.parts[i], most), hn::Neg(most)));
    };
    for (std::size_t i = 0; i < kHalf; ++i) {
      const VI low = hn::And(code(i), set(0x0f));
      const VI high = hn::And(hn::ShiftLeft<4>(code(i + kHalf)), set(0xf0));
      store_low_bytes(hn::BitCast(DU32(), hn::Or(low, high)), to + i * kLanes);
    }
  }
  // Shifting a code to the top of its lane and back extends its sign.
  static HWY_INLINE VF load(const std::byte* from, std::size_t i) {
    if (i < kHalf) {
      const VI low = hn::ShiftLeft<28>(load_bytes(from + i * kLanes));
      return hn::ConvertTo(DF(), hn::ShiftRight<28>(low));
    }
    const VI high = hn::ShiftLeft<24>(load_bytes(from + (i - kHalf) * kLanes));
    return hn::ConvertTo(DF(), hn::ShiftRight<28>(high));
  }
};

template <class Format>
struct Float8Codes {
  static HWY_INLINE void store(const Values& quotients, std::byte* to) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      store_low_bytes(hn::BitCast(DU32(), Format::narrow(quotients.parts[i])), to + i * kLanes);
    }
  }
  static HWY_INLINE VF load(const std::byte* from, std::size_t i) {
    return Format::template widen<0>(load_bytes(from + i * kLanes));
  }
};

// ---- Blocks ----

// Without kScales the factor is 1, and the product is left out.
template <bool kScales>
HWY_INLINE VF load_scaled(const float* from, VF factor) {
  const VF value = hn::LoadU(DF(), from);
  return kScales ? hn::Mul(value, factor) : value;
}

// The largest magnitude of a block as the bits of a float32. As integers, infinities and NaN exceed every number.
template <bool kScales>
HWY_INLINE uint32_t largest_of(const float* source, VF factor) {
  const VI magnitude = set(0x7fffffff);
  VI largest = hn::Zero(DI());
  for (std::size_t i = 0; i < kVectors; ++i) {
    largest = hn::Max(largest, hn::And(words_of(load_scaled<kScales>(source + i * kLanes, factor)), magnitude));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), largest)));
}

HWY_INLINE float scale_of(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float scale;
  std::memcpy(&scale, &wide, sizeof scale);
  return scale;
}

// Blocks whose scales are computed together: the divisions of different blocks overlap, and the values stay in L1.
constexpr std::size_t kGroup = 8;

template <class Codes, bool kScales>
HWY_INLINE void quantise_group(const ScaledFormat& format, std::byte* blocks, std::size_t bytes, const float* source,
                               std::size_t block_count, VF factor) {
  uint32_t largest[kGroup];
  uint16_t bits[kGroup];
  float inverses[kGroup];
  for (std::size_t b = 0; b < block_count; ++b) largest[b] = largest_of<kScales>(source + b * kBlockElements, factor);
  for (std::size_t b = 0; b < block_count; ++b) {
    bits[b] = scale_bits(format, largest[b]);
    inverses[b] = 1.0f / scale_of(bits[b]);
  }
  for (std::size_t b = 0; b < block_count; ++b) {
    std::byte* const to = blocks + b * bytes;
    std::memcpy(to, &bits[b], sizeof bits[b]);
    // A block of zeros, or one with values that are not finite, has codes of zero: they have no defined quotients.
    if (!(scale_of(bits[b]) > 0)) {
      std::memset(to + sizeof bits[b], 0, bytes - sizeof bits[b]);
      continue;
    }
    const VF inverse = hn::Set(DF(), inverses[b]);
    Values quotients;
    for (std::size_t i = 0; i < kVectors; ++i) {
      quotients.parts[i] = hn::Mul(load_scaled<kScales>(source + b * kBlockElements + i * kLanes, factor), inverse);
    }
    Codes::store(quotients, to + sizeof bits[b]);
  }
}

template <class Codes, bool kScales>
HWY_NOINLINE void quantise_scaled(const ScaledFormat& format, std::byte* blocks, std::size_t bytes, const float* source,
                                  std::size_t block_count, float factor) {
  const VF factors = hn::Set(DF(), factor);
  for (std::size_t block = 0; block < block_count; block += kGroup) {
    quantise_group<Codes, kScales>(format, blocks + block * bytes, bytes, source + block * kBlockElements,
                                   HWY_MIN(kGroup, block_count - block), factors);
  }
}

template <class Codes, bool kAdds>
HWY_NOINLINE void dequantise_scaled(float* target, const std::byte* blocks, std::size_t bytes,
                                    std::size_t block_count) {
  for (std::size_t block = 0; block < block_count; ++block) {
    const std::byte* const from = blocks + block * bytes;
    float* const to = target + block * kBlockElements;
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    const VF scale = floats_of(set(uint32_t{bits} << 16));
    for (std::size_t i = 0; i < kVectors; ++i) {
      VF value = hn::Mul(Codes::load(from + sizeof bits, i), scale);
      // The product is exact, so it does not matter whether a compiler fuses it with this sum.
      if constexpr (kAdds) value = hn::Add(hn::LoadU(DF(), to + i * kLanes), value);
      hn::StoreU(value, DF(), to + i * kLanes);
    }
  }
}

HWY_NOINLINE void quantise_bfloat16(std::byte* blocks, const float* source, std::size_t elements, float factor) {
  const VF factors = hn::Set(DF(), factor);
  auto* const to = reinterpret_cast<uint16_t*>(blocks);
  for (std::size_t i = 0; i < elements; i += kLanes) {
    const VI words = Bfloat16Format::narrow(hn::Mul(hn::LoadU(DF(), source + i), factors));
    hn::StoreU(hn::TruncateTo(DU16(), hn::BitCast(DU32(), words)), DU16(), to + i);
  }
}

template <bool kAdds>
HWY_NOINLINE void dequantise_bfloat16(float* target, const std::byte* blocks, std::size_t elements) {
  const auto* const from = reinterpret_cast<const uint16_t*>(blocks);
  for (std::size_t i = 0; i < elements; i += kLanes) {
    const auto words = hn::PromoteTo(DU32(), hn::LoadU(DU16(), from + i));
    VF value = hn::BitCast(DF(), hn::ShiftLeft<16>(words));
    if constexpr (kAdds) value = hn::Add(hn::LoadU(DF(), target + i), value);
    hn::StoreU(value, DF(), target + i);
  }
}

// Calls run(Codes()) with the class of a compression that has scales.
template <class Run>
HWY_INLINE void with_codes(Compression compression, const Run& run) {
  switch (compression) {
    case Compression::int8:
      return run(Int8Codes());
    case Compression::int4:
      return run(Int4Codes());
    case Compression::float8_e4m3:
      return run(Float8Codes<Float8E4m3Format>());
    case Compression::float8_e5m2:
      return run(Float8Codes<Float8E5m2Format>());
    default:
      FDL_CHECK(!"a compression with scales");
  }
}

void quantise_blocks_here(Compression compression, std::byte* blocks, const float* source, std::size_t block_count,
                          float factor) {
  if (compression == Compression::bfloat16) {
    return quantise_bfloat16(blocks, source, block_count * kBlockElements, factor);
  }
  const ScaledFormat& format = scaled_format(compression);
  with_codes(compression, [&](auto codes) HWY_ATTR {
    using Codes = decltype(codes);
    const std::size_t bytes = block_bytes(compression);
    return factor == 1 ? quantise_scaled<Codes, false>(format, blocks, bytes, source, block_count, factor)
                       : quantise_scaled<Codes, true>(format, blocks, bytes, source, block_count, factor);
  });
}

void dequantise_blocks_here(Compression compression, float* target, const std::byte* blocks, std::size_t block_count,
                            bool adds) {
  if (compression == Compression::bfloat16) {
    const std::size_t elements = block_count * kBlockElements;
    return adds ? dequantise_bfloat16<true>(target, blocks, elements)
                : dequantise_bfloat16<false>(target, blocks, elements);
  }
  with_codes(compression, [&](auto codes) HWY_ATTR {
    using Codes = decltype(codes);
    const std::size_t bytes = block_bytes(compression);
    return adds ? dequantise_scaled<Codes, true>(target, blocks, bytes, block_count)
                : dequantise_scaled<Codes, false>(target, blocks, bytes, block_count);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fdl::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdl::kernels {

HWY_EXPORT(quantise_blocks_here);
HWY_EXPORT(dequantise_blocks_here);

void quantise_blocks(Compression compression, std::byte* blocks, const float* source, std::size_t block_count,
                     float factor) {
  HWY_DYNAMIC_DISPATCH(quantise_blocks_here)(compression, blocks, source, block_count, factor);
}
void dequantise_blocks(Compression compression, float* target, const std::byte* blocks, std::size_t block_count,
                       bool adds) {
  HWY_DYNAMIC_DISPATCH(dequantise_blocks_here)(compression, target, blocks, block_count, adds);
}

}  // namespace fdl::kernels
#endif
