// Tests of the block formats: exact bits on every instruction set, bounds of errors, and values that are not finite.
#include "data/compression.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "data/half.h"
#include "hwy/targets.h"
#include "tests/unit/data/each_target.h"

namespace fdl {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr Compression kAll[] = {Compression::int8, Compression::int4, Compression::float8_e4m3,
                                Compression::float8_e5m2, Compression::bfloat16};

using Blocks = std::vector<std::byte>;

Blocks quantised(Compression compression, const std::vector<float>& values, float factor = 1) {
  Blocks blocks(blocks_of(values.size()) * block_bytes(compression));
  quantise(compression, blocks.data(), values.data(), values.size(), factor);
  return blocks;
}

std::vector<float> dequantised(Compression compression, const Blocks& blocks, std::size_t count) {
  std::vector<float> values(count, -1);
  dequantise(compression, values.data(), blocks.data(), count);
  return values;
}

// The name appears in the trace of a failure.
struct Sample {
  std::string name;
  std::vector<float> values;
};

std::vector<Sample> samples(std::size_t count) {
  std::mt19937_64 random(20261125);
  std::normal_distribution<float> normal(0, 0.01f);
  std::cauchy_distribution<float> cauchy(0, 1);
  std::vector<Sample> all = {{"normal", {}}, {"heavy-tailed", {}}, {"one huge", {}},     {"subnormal", {}},
                             {"zeros", {}},  {"mixed scales", {}}, {"near the end", {}}, {"halfway", {}}};
  for (Sample& sample : all) sample.values.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    all[0].values[i] = normal(random);
    all[1].values[i] = cauchy(random);
    all[2].values[i] = i == count / 2 ? 1e30f : normal(random);
    all[3].values[i] = std::bit_cast<float>(static_cast<uint32_t>(random() % 0x800000) | (i % 2 == 0 ? 0x80000000 : 0));
    all[5].values[i] = std::ldexp(normal(random), static_cast<int>(random() % 240) - 120);
    all[6].values[i] = kLargest * (i % 3 == 0 ? 1 : -0.9999f);
    all[7].values[i] = i % kBlockElements == 0 ? 127.0f : static_cast<float>(random() % 200) - 99.5f;
  }
  return all;
}

// ---- Names and sizes ----

TEST(Compression, NamesRoundTrip) {
  for (int i = 0; i < kCompressionCount; ++i) {
    const auto compression = static_cast<Compression>(i);
    EXPECT_EQ(compression_named(name_of(compression)), compression);
  }
  EXPECT_EQ(name_of(Compression::float8_e5m2), "float8_e5m2");
  EXPECT_EQ(compression_named("int16"), std::nullopt);
  EXPECT_FALSE(is_compression(kCompressionCount));
  EXPECT_FALSE(is_compression(-1));
}

TEST(Compression, BlocksAreAsSmallAsPromised) {
  EXPECT_EQ(block_bytes(Compression::int8), kBlockElements + 2);
  EXPECT_EQ(block_bytes(Compression::int4), kBlockElements / 2 + 2);
  EXPECT_EQ(block_bytes(Compression::bfloat16), kBlockElements * 2);
  EXPECT_EQ(blocks_of(0), 0u);
  EXPECT_EQ(blocks_of(1), 1u);
  EXPECT_EQ(blocks_of(kBlockElements + 1), 2u);
}

// ---- Kernels, on each instruction set ----

class CompressionKernels : public test::OnEachTarget {};

// One value at a time, as compression.h describes the formats.
Blocks reference(Compression compression, const std::vector<float>& values, float factor) {
  Blocks blocks(blocks_of(values.size()) * block_bytes(compression));
  for (std::size_t block = 0; block < blocks_of(values.size()); ++block) {
    float x[kBlockElements] = {};
    for (std::size_t i = 0; i < kBlockElements && block * kBlockElements + i < values.size(); ++i) {
      x[i] = values[block * kBlockElements + i] * factor;
    }
    std::byte* to = blocks.data() + block * block_bytes(compression);
    if (compression == Compression::bfloat16) {
      for (std::size_t i = 0; i < kBlockElements; ++i) {
        const uint16_t bits = float_to_bfloat16(x[i]);
        std::memcpy(to + 2 * i, &bits, 2);
      }
      continue;
    }
    const float limits[] = {0, 127, 7, 448, 57344};
    const float limit = limits[static_cast<int>(compression)];
    const bool finite = std::all_of(x, x + kBlockElements, [](float value) { return std::isfinite(value); });
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::abs(value));
    uint16_t bits = 0;
    if (largest > 0) bits = static_cast<uint16_t>((std::bit_cast<uint32_t>(largest / limit) + 0xffff) >> 16);
    while (bits != 0 && !std::isfinite(bfloat16_to_float(bits) * limit)) --bits;
    if (bits > 0) bits = std::max<uint16_t>(bits, 0x0080);
    if (!finite) bits = 0x7fc0;
    std::memcpy(to, &bits, 2);
    if (bits == 0 || !finite) continue;
    const float inverse = 1 / bfloat16_to_float(bits);
    for (std::size_t i = 0; i < kBlockElements; ++i) {
      const float quotient = x[i] * inverse;
      const auto integer = static_cast<int>(std::nearbyint(std::clamp(quotient, -limit, limit)));
      switch (compression) {
        case Compression::int8:
          to[2 + i] = static_cast<std::byte>(integer);
          break;
        case Compression::int4:
          to[2 + i % (kBlockElements / 2)] |=
              static_cast<std::byte>(i < kBlockElements / 2 ? integer & 15 : integer << 4);
          break;
        case Compression::float8_e4m3:
          to[2 + i] = static_cast<std::byte>(float_to_float8_e4m3(quotient));
          break;
        default:
          to[2 + i] = static_cast<std::byte>(float_to_float8_e5m2(quotient));
      }
    }
  }
  return blocks;
}

TEST_P(CompressionKernels, WriteTheBitsOfTheReference) {
  for (const std::size_t count : {std::size_t{1}, kBlockElements, kBlockElements + 1, std::size_t{1000}}) {
    for (const Sample& sample : samples(count)) {
      for (const Compression compression : kAll) {
        for (const float factor : {1.0f, 0.3f}) {
          EXPECT_EQ(quantised(compression, sample.values, factor), reference(compression, sample.values, factor))
              << name_of(compression) << ", " << sample.name << ", " << count << " elements, factor " << factor;
        }
      }
    }
  }
}

TEST_P(CompressionKernels, ReadEveryCodeExactly) {
  for (const Compression compression : kAll) {
    if (compression == Compression::bfloat16) continue;
    for (const uint16_t scale : {uint16_t{0x0080}, uint16_t{0x3f81}, uint16_t{0x3fff}, uint16_t{0x7000}}) {
      for (int code = 0; code < 256; ++code) {
        Blocks block(block_bytes(compression), static_cast<std::byte>(code));
        std::memcpy(block.data(), &scale, 2);
        const std::vector<float> values = dequantised(compression, block, kBlockElements);
        double low = 0, high = 0;
        switch (compression) {
          case Compression::int8:
            low = high = static_cast<int8_t>(code);
            break;
          case Compression::int4:
            low = static_cast<int8_t>(code << 4) / 16;
            high = static_cast<int8_t>(code) >> 4;
            break;
          case Compression::float8_e4m3:
            low = high = float8_e4m3_to_float(static_cast<uint8_t>(code));
            break;
          default:
            low = high = float8_e5m2_to_float(static_cast<uint8_t>(code));
        }
        if (!std::isfinite(low)) continue;  // never written
        EXPECT_EQ(values.front(), low * bfloat16_to_float(scale)) << name_of(compression) << " " << code;
        EXPECT_EQ(values.back(), high * bfloat16_to_float(scale)) << name_of(compression) << " " << code;
      }
    }
  }
}

TEST_P(CompressionKernels, AddWhatTheyRead) {
  for (const Sample& sample : samples(777)) {
    for (const Compression compression : kAll) {
      const Blocks blocks = quantised(compression, sample.values);
      const std::vector<float> read = dequantised(compression, blocks, 777);
      std::vector<float> sums(777);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<float>(i) / 3;
      const std::vector<float> before = sums;
      add_dequantised(compression, sums.data(), blocks.data(), sums.size());
      for (std::size_t i = 0; i < sums.size(); ++i) {
        EXPECT_EQ(sums[i], before[i] + read[i]) << name_of(compression) << ", " << sample.name << ", element " << i;
      }
    }
  }
}

TEST_P(CompressionKernels, StayWithinTheBound) {
  for (const Sample& sample : samples(10 * kBlockElements)) {
    for (const Compression compression : kAll) {
      const Blocks blocks = quantised(compression, sample.values);
      const std::vector<float> read = dequantised(compression, blocks, sample.values.size());
      for (std::size_t i = 0; i < read.size(); ++i) {
        const BlockBound bound =
            bound_of_block(compression, blocks.data() + i / kBlockElements * block_bytes(compression));
        const double x = sample.values[i];
        const double y = read[i];
        // Above its largest number bfloat16 has infinity, and the bound says so.
        EXPECT_TRUE(std::isfinite(y) || compression == Compression::bfloat16);
        EXPECT_LE(std::abs(x - y), bound.error) << name_of(compression) << ", " << sample.name << ", " << x;
        EXPECT_LE(std::max(std::abs(x), std::abs(y)), bound.magnitude) << name_of(compression) << ", " << sample.name;
      }
    }
  }
}

// The bound is not much larger than what an adversary reaches: a value halfway between two codes.
TEST_P(CompressionKernels, CanReachTheBound) {
  const float halfway[] = {0, 126.5f, 6.5f, 432.0f, 53248.0f, 1.0f + 1.0f / 256};
  const float largest[] = {0, 127, 7, 448, 57344, 1.0f + 1.0f / 256};
  for (const Compression compression : kAll) {
    std::vector<float> values(kBlockElements, halfway[static_cast<int>(compression)]);
    values.back() = largest[static_cast<int>(compression)];
    const Blocks blocks = quantised(compression, values);
    const double error = std::abs(values[0] - dequantised(compression, blocks, kBlockElements)[0]);
    EXPECT_GT(error, 0.98 * error_bound(compression, blocks.data(), kBlockElements)) << name_of(compression);
  }
}

// ---- Values that are not finite ----

TEST_P(CompressionKernels, ValuesThatAreNotFiniteStaySo) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (const Compression compression : kAll) {
      std::vector<float> values(3 * kBlockElements, 1.5f);
      values[kBlockElements + 7] = bad;
      const Blocks blocks = quantised(compression, values);
      const std::vector<float> read = dequantised(compression, blocks, values.size());
      EXPECT_EQ(error_bound(compression, blocks.data(), values.size()), kInfinity) << name_of(compression);
      for (std::size_t i = 0; i < read.size(); ++i) {
        const bool spoiled = compression == Compression::bfloat16 ? i == kBlockElements + 7 : i / kBlockElements == 1;
        EXPECT_EQ(!std::isfinite(read[i]), spoiled) << name_of(compression) << ", element " << i;
      }
      if (compression == Compression::bfloat16) {
        EXPECT_EQ(std::isnan(bad), std::isnan(read[kBlockElements + 7]));
      }
    }
  }
}

TEST_P(CompressionKernels, ZerosAreExact) {
  for (const Compression compression : kAll) {
    const std::vector<float> zeros(100, 0.0f);
    const Blocks blocks = quantised(compression, zeros);
    EXPECT_EQ(dequantised(compression, blocks, 100), zeros);
    EXPECT_LE(error_bound(compression, blocks.data(), 100), std::ldexp(1.0, -134)) << name_of(compression);
  }
}

TEST_P(CompressionKernels, AFactorThatOverflowsIsNotFinite) {
  for (const Compression compression : kAll) {
    const Blocks blocks = quantised(compression, std::vector<float>(5, 1e38f), 100);
    EXPECT_EQ(error_bound(compression, blocks.data(), 5), kInfinity) << name_of(compression);
    EXPECT_FALSE(std::isfinite(dequantised(compression, blocks, 5)[0])) << name_of(compression);
  }
}

INSTANTIATE_TEST_SUITE_P(AllTargets, CompressionKernels, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& tested) { return std::string(hwy::TargetName(tested.param)); });

}  // namespace
}  // namespace fdl
