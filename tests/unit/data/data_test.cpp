// Tests of the data module: names, exact conversions, and every kernel on every instruction set of this machine against
// a naive fold.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "data/dtype.h"
#include "data/half.h"
#include "data/kernels.h"
#include "data/reduce.h"
#include "hwy/targets.h"
#include "tests/unit/data/each_target.h"

namespace fdl {
namespace {

std::vector<Dtype> all_dtypes() {
  std::vector<Dtype> all;
  for (int i = 0; i < kDtypeCount; ++i) all.push_back(static_cast<Dtype>(i));
  return all;
}

std::vector<Op> all_ops() {
  std::vector<Op> all;
  for (int i = 0; i < kOpCount; ++i) all.push_back(static_cast<Op>(i));
  return all;
}

// ---- Names ----

TEST(Dtype, NamesRoundTrip) {
  for (const Dtype dtype : all_dtypes()) EXPECT_EQ(dtype_named(name_of(dtype)), dtype) << name_of(dtype);
  EXPECT_EQ(name_of(Dtype::bool_), "bool");
  EXPECT_EQ(name_of(Dtype::float8_e4m3), "float8_e4m3");
  EXPECT_EQ(dtype_named("bool_"), std::nullopt);
  EXPECT_EQ(dtype_named("float"), std::nullopt);
  EXPECT_EQ(dtype_named(""), std::nullopt);
  EXPECT_EQ(name_of(static_cast<Dtype>(200)), "unknown");
}

TEST(Dtype, HasTheRightSizesAndKinds) {
  EXPECT_EQ(size_of(Dtype::bool_), 1u);
  EXPECT_EQ(size_of(Dtype::bfloat16), 2u);
  EXPECT_EQ(size_of(Dtype::float8_e5m2), 1u);
  EXPECT_EQ(size_of(Dtype::float64), 8u);
  EXPECT_EQ(kind_of(Dtype::int8), DtypeKind::integer);
  EXPECT_EQ(kind_of(Dtype::float16), DtypeKind::small_real);
  EXPECT_TRUE(is_dtype(14));
  EXPECT_FALSE(is_dtype(15));
  EXPECT_FALSE(is_dtype(-1));
}

TEST(Op, HasAName) {
  EXPECT_EQ(name_of(Op::sum), "sum");
  EXPECT_EQ(name_of(Op::bit_xor), "bit_xor");
  EXPECT_EQ(name_of(Op::user), "user");
  EXPECT_EQ(name_of(static_cast<Op>(99)), "unknown");
}

TEST(Op, SupportsTheTypesOfTheTable) {
  // uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 bool e4m3 e5m2
  const std::array<const char*, kOpCount> table = {
      "yyyyyyyyyyyyyyy",  // sum
      "yyyyyyyyyyyy.yy",  // average
      "yyyyyyyyyyyyyyy",  // min
      "yyyyyyyyyyyyyyy",  // max
      "yyyyyyyyyyyyyyy",  // product
      "yyyyyyyy.......",  // bit_and
      "yyyyyyyy.......",  // bit_or
      "yyyyyyyy.......",  // bit_xor
      "............y..",  // logical_and
      "............y..",  // logical_or
      "............y..",  // logical_xor
      "yyyyyyyyyyyyyyy",  // user
      "...............",  // adasum folds no elements
  };
  for (const Op op : all_ops()) {
    for (const Dtype dtype : all_dtypes()) {
      EXPECT_EQ(supports(dtype, op), table[static_cast<int>(op)][static_cast<int>(dtype)] == 'y')
          << name_of(op) << " of " << name_of(dtype);
    }
  }
  EXPECT_FALSE(supports(static_cast<Dtype>(kDtypeCount), Op::sum));
  EXPECT_FALSE(supports(Dtype::int8, static_cast<Op>(kOpCount)));
}

// ---- Conversions ----

struct SmallReal {
  const char* name;
  int bits, exponent_bits;
  bool has_infinities;
  float (*widen)(uint32_t);
  uint32_t (*narrow)(float);

  int mantissa_bits() const { return bits - 1 - exponent_bits; }
  uint32_t sign() const { return 1u << (bits - 1); }
};

const std::array<SmallReal, 4> kSmallReals = {{
    {"float16", 16, 5, true, [](uint32_t x) { return float16_to_float(static_cast<uint16_t>(x)); },
     [](float x) -> uint32_t { return float_to_float16(x); }},
    {"bfloat16", 16, 8, true, [](uint32_t x) { return bfloat16_to_float(static_cast<uint16_t>(x)); },
     [](float x) -> uint32_t { return float_to_bfloat16(x); }},
    {"float8_e4m3", 8, 4, false, [](uint32_t x) { return float8_e4m3_to_float(static_cast<uint8_t>(x)); },
     [](float x) -> uint32_t { return float_to_float8_e4m3(x); }},
    {"float8_e5m2", 8, 5, true, [](uint32_t x) { return float8_e5m2_to_float(static_cast<uint8_t>(x)); },
     [](float x) -> uint32_t { return float_to_float8_e5m2(x); }},
}};

// The value of a pattern by the definition of the formats: (-1)^s * 2^e * 1.m.
double meaning_of(const SmallReal& type, uint32_t pattern) {
  const int mantissa_bits = type.mantissa_bits();
  const int bias = (1 << (type.exponent_bits - 1)) - 1;
  const int top = (1 << type.exponent_bits) - 1;
  const int exponent = static_cast<int>(pattern >> mantissa_bits) & top;
  const int mantissa = static_cast<int>(pattern) & ((1 << mantissa_bits) - 1);
  const double sign = (pattern & type.sign()) ? -1 : 1;
  if (exponent == top && type.has_infinities) return mantissa ? NAN : sign * INFINITY;
  if (exponent == top && mantissa == (1 << mantissa_bits) - 1) return NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(SmallReals, WidenEveryPattern) {
  for (const SmallReal& type : kSmallReals) {
    for (uint32_t pattern = 0; pattern < (1u << type.bits); ++pattern) {
      const double expected = meaning_of(type, pattern);
      const float widened = type.widen(pattern);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(widened)) << type.name << " " << pattern;
      } else {
        ASSERT_EQ(widened, expected) << type.name << " " << pattern;
        ASSERT_EQ(std::signbit(widened), (pattern & type.sign()) != 0) << type.name << " " << pattern;
        ASSERT_EQ(type.narrow(widened), pattern) << type.name << ": narrowing inverts widening";
      }
    }
  }
}

TEST(SmallReals, NarrowToNearestAndTiesToEven) {
  for (const SmallReal& type : kSmallReals) {
    // Test the midpoint between every two neighbours and the floats next to it. For the largest number the upper
    // neighbour is the number that would follow it.
    for (uint32_t low = 0; std::isfinite(meaning_of(type, low)); ++low) {
      const double value = meaning_of(type, low);
      const bool largest = !std::isfinite(meaning_of(type, low + 1));
      const double next = largest ? value + (value - meaning_of(type, low - 1)) : meaning_of(type, low + 1);
      const auto middle = static_cast<float>((value + next) / 2);
      ASSERT_EQ(middle, (value + next) / 2) << "midpoints are floats";
      const uint32_t even = (low & 1) ? low + 1 : low;
      for (const uint32_t sign : {0u, type.sign()}) {
        const float side = sign ? -1.0f : 1.0f;
        ASSERT_EQ(type.narrow(side * middle), sign | even) << type.name << " " << middle;
        ASSERT_EQ(type.narrow(side * std::nextafter(middle, 0.0f)), sign | low) << type.name << " below " << middle;
        ASSERT_EQ(type.narrow(side * std::nextafter(middle, INFINITY)), sign | (low + 1)) << type.name << middle;
      }
    }
  }
}

TEST(SmallReals, OverflowAsTheirFormatsDefine) {
  for (const float large : {1e38f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(float_to_float16(large), 0x7c00);
    EXPECT_EQ(float_to_float16(-large), 0xfc00);
    EXPECT_EQ(float_to_float8_e5m2(large), 0x7c);
    EXPECT_EQ(float_to_float8_e5m2(-large), 0xfc);
    EXPECT_EQ(float_to_float8_e4m3(large) & 0x7f, 0x7f) << "e4m3 has no infinity";
    EXPECT_EQ(float_to_float8_e4m3(-large) & 0x7f, 0x7f);
  }
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_float8_e4m3(464.0f), 0x7e) << "halfway to 480 goes to the even 448";
  EXPECT_EQ(float_to_float8_e4m3(465.0f), 0x7f);
  EXPECT_EQ(float_to_float16(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_float16(65520.0f), 0x7c00);
  for (const SmallReal& type : kSmallReals) {
    for (const uint32_t nan : {0x7fc00000u, 0x7f800001u, 0xffffffffu, 0xff800001u}) {
      EXPECT_TRUE(std::isnan(type.widen(type.narrow(std::bit_cast<float>(nan))))) << type.name << " " << nan;
    }
  }
}

// ---- A naive fold ----

template <class T>
T fold_pair(Op op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case Op::min:
        return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
      case Op::max:
        return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
      case Op::product:
        return a * b;
      default:
        return a + b;
    }
  } else {
    const auto wide_a = static_cast<uint64_t>(a);
    const auto wide_b = static_cast<uint64_t>(b);
    switch (op) {
      case Op::min:
        return std::min(a, b);
      case Op::max:
        return std::max(a, b);
      case Op::product:
        return static_cast<T>(wide_a * wide_b);
      case Op::bit_and:
        return static_cast<T>(a & b);
      case Op::bit_or:
        return static_cast<T>(a | b);
      case Op::bit_xor:
        return static_cast<T>(a ^ b);
      default:
        return static_cast<T>(wide_a + wide_b);
    }
  }
}

bool fold_pair(Op op, bool a, bool b) {
  switch (op) {
    case Op::product:
    case Op::min:
    case Op::logical_and:
      return a && b;
    case Op::logical_xor:
      return a != b;
    default:
      return a || b;
  }
}

template <class T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Calls `body` with functions that read and write one element as the type in which it is folded.
template <class Body>
void with_codec(Dtype dtype, Body body) {
  const auto store = []<class T>(uint8_t* to, T value) { std::memcpy(to, &value, sizeof(T)); };
  switch (dtype) {
#define SMALL(name, bits)                                                              \
  case Dtype::name:                                                                    \
    return body([](const uint8_t* from) { return name##_to_float(load<bits>(from)); }, \
                [=](uint8_t* to, float value) { store(to, float_to_##name(value)); });
    SMALL(float16, uint16_t)
    SMALL(bfloat16, uint16_t)
    SMALL(float8_e4m3, uint8_t)
    SMALL(float8_e5m2, uint8_t)
#undef SMALL
    case Dtype::bool_:
      return body([](const uint8_t* from) { return *from != 0; }, [](uint8_t* to, bool value) { *to = value; });
#define PLAIN(name, type) \
  case Dtype::name:       \
    return body(load<type>, [=](uint8_t* to, type value) { store(to, value); });
      PLAIN(uint8, uint8_t)
      PLAIN(int8, int8_t)
      PLAIN(uint16, uint16_t)
      PLAIN(int16, int16_t)
      PLAIN(uint32, uint32_t)
      PLAIN(int32, int32_t)
      PLAIN(uint64, uint64_t)
      PLAIN(int64, int64_t)
      PLAIN(float32, float)
      PLAIN(float64, double)
#undef PLAIN
  }
}

using Memory = std::vector<uint8_t>;

Memory naive_fold(Dtype dtype, Op op, const std::vector<const uint8_t*>& sources, std::size_t count) {
  Memory result(count * size_of(dtype));
  with_codec(dtype, [&](auto read, auto write) {
    for (std::size_t at = 0; at < result.size(); at += size_of(dtype)) {
      auto value = read(sources[0] + at);
      for (std::size_t k = 1; k < sources.size(); ++k) value = fold_pair(op, value, read(sources[k] + at));
      write(result.data() + at, value);
    }
  });
  return result;
}

// Returns whether two values are equal; all NaN are equal, and the sign of zero is ignored.
bool same(Dtype dtype, const uint8_t* a, const uint8_t* b) {
  bool equal = false;
  with_codec(dtype, [&](auto read, auto) {
    const auto x = read(a);
    const auto y = read(b);
    equal = x == y || (x != x && y != y);
  });
  return equal && (kind_of(dtype) != DtypeKind::logical || *a == *b);
}

// ---- Kernels ----

constexpr uint64_t kSeed = 20260117;

class Kernels : public test::OnEachTarget {
 protected:
  std::mt19937_64 random_{kSeed};

  std::size_t pick(std::size_t below) { return random_() % below; }

  // Writes with equal chance a small number (whose folds are exact), any pattern, or a special value of some format.
  void write_element(Dtype dtype, uint8_t* to) {
    const auto choice = pick(3);
    uint64_t pattern = random_();
    if (choice == 0) {
      with_codec(dtype, [&](auto, auto write) { write(to, static_cast<int8_t>(pattern % 5)); });
      return;
    }
    if (choice == 1) {
      constexpr std::array<uint64_t, 16> kSpecial = {0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 1,
                                                     0x7f8000007f800000, 0xff800000ff800000, 0x7fc000007fc00000, 0,
                                                     0x7c007c007c007c00, 0x7f807f807f807f80, 0x8080808080808080, ~0ull,
                                                     0x7e7e7e7e7e7e7e7e, 0x7bff7bff7bff7bff, 0x0101010101010101, 0x80};
      pattern = kSpecial[pick(kSpecial.size())];
    }
    std::memcpy(to, &pattern, size_of(dtype));
  }

  // `count` elements of a type inside a larger block of memory, at any alignment.
  struct Block {
    Memory memory;
    std::size_t offset;
    uint8_t* data() { return memory.data() + offset; }
  };

  Block block(Dtype dtype, std::size_t count) {
    Block result = {Memory(count * size_of(dtype) + 192), 64 + pick(64)};
    for (uint8_t& byte : result.memory) byte = static_cast<uint8_t>(random_());
    for (std::size_t i = 0; i < count; ++i) write_element(dtype, result.data() + i * size_of(dtype));
    return result;
  }

  // Folds random sources into a separate target (alias < 0) or into one of them, and checks every byte.
  void check_fold(Dtype dtype, Op op, std::size_t count, int source_count, int alias) {
    SCOPED_TRACE(std::string(name_of(op)) + " of " + std::to_string(count) + " " + std::string(name_of(dtype)) + ", " +
                 std::to_string(source_count) + " sources, target is " + std::to_string(alias));
    std::vector<Block> blocks;
    for (int k = 0; k < source_count; ++k) blocks.push_back(block(dtype, count));
    Block own = block(dtype, count);
    std::vector<const uint8_t*> bytes;
    std::vector<const void*> sources;
    for (Block& one : blocks) bytes.push_back(one.data());
    for (Block& one : blocks) sources.push_back(one.data());
    const Memory expected = naive_fold(dtype, op, bytes, count);
    std::vector<Block> before = blocks;
    Block& target = alias < 0 ? own : blocks[alias];
    const Block target_before = target;
    reduce_many(dtype, {op}, target.data(), sources, count);

    const std::size_t size = size_of(dtype);
    for (std::size_t i = 0; i < count * size; i += size) {
      // A single source is copied unchanged.
      if (source_count == 1)
        ASSERT_EQ(std::memcmp(target.data() + i, before[0].data() + i, size), 0) << "byte " << i;
      else
        ASSERT_TRUE(same(dtype, target.data() + i, expected.data() + i))
            << "byte " << i << ", expected " << std::to_string(expected[i]) << ", is "
            << std::to_string(target.data()[i]);
    }
    for (int k = 0; k < source_count; ++k) {
      if (k == alias) continue;
      ASSERT_EQ(blocks[k].memory, before[k].memory) << "source " << k << " was written to";
    }
    Block around = target;
    std::memcpy(around.data(), target_before.memory.data() + target.offset, count * size);
    ASSERT_EQ(around.memory, target_before.memory) << "bytes beside the target were written to";
  }

  template <class Body>
  void for_all(Body body) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    for (const Dtype dtype : all_dtypes()) {
      for (const Op op : all_ops()) {
        if (op == Op::user || !supports(dtype, op)) continue;
        body(dtype, op);
        if (HasFatalFailure()) return;
      }
    }
  }
};

std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t length = 0; length <= 70; ++length) all.push_back(length);
  for (const std::size_t length : {127, 128, 129, 255, 257, 511, 513, 1023, 4099}) all.push_back(length);
  return all;
}

TEST_P(Kernels, FoldTwoSourcesOfAnyLengthAndAlignment) {
  for_all([&](Dtype dtype, Op op) {
    for (const std::size_t length : lengths()) {
      check_fold(dtype, op, length, 2, -1);
      check_fold(dtype, op, length, 2, 0);
      check_fold(dtype, op, length, 2, 1);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(Kernels, FoldOneToNineSourcesIntoAnyOfThem) {
  for_all([&](Dtype dtype, Op op) {
    for (const std::size_t length : {1ul, 5ul, 63ul, 130ul, 517ul}) {
      for (int source_count = 1; source_count <= 9; ++source_count) {
        check_fold(dtype, op, length, source_count, -1);
        check_fold(dtype, op, length, source_count, static_cast<int>(pick(source_count)));
        if (HasFatalFailure()) return;
      }
    }
  });
}

// More than eight sources are folded in groups, block by block.
TEST_P(Kernels, FoldManySourcesIntoAnyOfThem) {
  for_all([&](Dtype dtype, Op op) {
    for (const std::size_t length : {3ul, 67ul, 4099ul}) {
      for (const int source_count : {10, 17, 26}) {
        check_fold(dtype, op, length, source_count, static_cast<int>(pick(source_count + 1)) - 1);
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST_P(Kernels, FoldIntoManyTargetsWithTheBitsOfFoldAndScale) {
  std::mt19937_64 random(7);
  for (const Dtype dtype : {Dtype::float32, Dtype::float64}) {
    for (const Op op : {Op::sum, Op::average, Op::product, Op::min, Op::max}) {
      for (const std::size_t count : {0, 1, 7, 16, 63, 64, 65, 200, 1023, 4099}) {
        const std::size_t source_count = 1 + random() % 8;
        const double factor = count % 2 == 0 ? 1 : 1.0 / 3;
        const std::size_t streamed = random() % 4;  // number of streamed targets
        const bool in_place = random() % 2 == 0;
        const std::size_t bytes = count * size_of(dtype);
        // Sources and targets are aligned to cache lines, with guard lines between them.
        const std::size_t stride = (bytes + 2 * 64) / 64 * 64;
        std::vector<std::byte> memory((source_count + 3) * stride + 64);
        std::byte* start = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        std::vector<const void*> sources;
        for (std::size_t k = 0; k < source_count; ++k) {
          std::byte* source = start + k * stride;
          for (std::size_t i = 0; i < count; ++i) {
            const double value = static_cast<double>(random() % 2000) / 300 - 3;
            const auto single = static_cast<float>(value);
            if (dtype == Dtype::float32) std::memcpy(source + i * 4, &single, 4);
            if (dtype == Dtype::float64) std::memcpy(source + i * 8, &value, 8);
          }
          sources.push_back(source);
        }
        std::vector<std::byte> expected(bytes);
        reduce_many(dtype, {op}, expected.data(), sources, count);
        scale(dtype, expected.data(), expected.data(), count, factor);
        std::byte* separate = start + source_count * stride;
        std::vector<std::byte*> targets{separate, separate + stride};
        if (in_place) targets.push_back(start);
        std::fill(separate + bytes, separate + stride, std::byte{0x5a});
        reduce_to_many(dtype, {op}, targets, sources, count, factor,
                       targets.size() - std::min(streamed, targets.size()));
        for (const std::byte* target : targets) {
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), target))
              << name_of(dtype) << " " << name_of(op) << " " << count << " of " << source_count << " streamed "
              << streamed;
        }
        EXPECT_EQ(separate[bytes], std::byte{0x5a}) << "a byte beyond the end was written to";
      }
    }
  }
}

// A fold in three parts of random lengths must equal the fold of all sources at once.
TEST_P(Kernels, FoldInPartsWithTheBitsOfOneFold) {
  std::mt19937_64 random(kSeed);
  for_all([&](Dtype dtype, Op op) {
    for (const std::size_t count : {0, 1, 7, 63, 64, 65, 200, 1023}) {
      const std::size_t bytes = count * size_of(dtype);
      std::vector<Memory> all(9, Memory(bytes));
      std::vector<const void*> sources;
      for (Memory& one : all) {
        for (uint8_t& byte : one) byte = static_cast<uint8_t>(random() % 0x78 + (random() % 2 == 0 ? 0x80 : 0));
        if (dtype == Dtype::bool_) std::ranges::for_each(one, [](uint8_t& byte) { byte &= 1; });
        sources.push_back(one.data());
      }
      Memory expected(bytes);
      reduce_many(dtype, {op}, expected.data(), sources, count);
      const std::size_t partial = size_of_partial(dtype, {op});
      EXPECT_EQ(partial, kind_of(dtype) == DtypeKind::small_real ? 4 : size_of(dtype));
      const std::size_t first = 1 + random() % 3;
      const std::size_t second = first + 1 + random() % 3;
      Memory begun(count * partial + 1, 0x5a), gone_on(begun), result(bytes + 1, 0x5a);
      const auto span = std::span<const void* const>(sources);
      reduce_part(dtype, {op}, begun.data(), nullptr, span.first(first), count, false);
      reduce_part(dtype, {op}, gone_on.data(), begun.data(), span.subspan(first, second - first), count, false);
      reduce_part(dtype, {op}, result.data(), gone_on.data(), span.subspan(second), count, true);
      for (const Memory* memory : {&begun, &gone_on, &result}) EXPECT_EQ(memory->back(), 0x5a) << "beyond the end";
      for (std::size_t at = 0; at < bytes; at += size_of(dtype)) {
        ASSERT_TRUE(same(dtype, &result[at], &expected[at])) << name_of(op) << " " << name_of(dtype) << " byte " << at;
      }
    }
  });
}

// Adds zero to all patterns of a small real, so that each is widened and narrowed; bytes are also combined with each
// other.
TEST_P(Kernels, ConvertEveryPatternOfSmallReals) {
  for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16, Dtype::float8_e4m3, Dtype::float8_e5m2}) {
    const std::size_t size = size_of(dtype);
    std::vector<uint16_t> patterns(65536);
    for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
    std::vector<uint16_t> others(65536);
    if (size == 1) {
      // Bytes of `patterns` are (low, high); swapped, each low meets each high.
      for (std::size_t i = 0; i < others.size(); ++i) others[i] = static_cast<uint16_t>(i << 8 | i >> 8);
    }
    const auto* a = reinterpret_cast<const uint8_t*>(patterns.data());
    const auto* b = reinterpret_cast<const uint8_t*>(others.data());
    const std::size_t count = 131072 / size;
    for (const Op op : {Op::sum, Op::min, Op::max, Op::product}) {
      const Memory expected = naive_fold(dtype, op, {a, b}, count);
      Memory result(131072);
      const void* const sources[] = {a, b};
      reduce_many(dtype, {op}, result.data(), sources, count);
      for (std::size_t at = 0; at < result.size(); at += size) {
        ASSERT_TRUE(same(dtype, &result[at], &expected[at])) << name_of(op) << " " << name_of(dtype) << " byte " << at;
      }
    }
  }
}

TEST_P(Kernels, RoundSmallRealsOnce) {
  // 1 + 2^-8 + 2^-8: rounded after each addition bfloat16 stays at 1; rounded once it is 1 + 2^-7.
  const uint16_t one = float_to_bfloat16(1.0f);
  const uint16_t bit = float_to_bfloat16(0x1p-8f);
  const void* const sources[] = {&one, &bit, &bit};
  uint16_t result = 0;
  reduce_many(Dtype::bfloat16, {Op::sum}, &result, sources, 1);
  EXPECT_EQ(bfloat16_to_float(result), 1.0f + 0x1p-7f);
}

// The arrays end where the accessible memory ends, as the last slot of a shared segment does.
TEST_P(Kernels, AccessNothingBeyondTheEnd) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* mapping = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<uint8_t*>(mapping) + page, page, PROT_NONE), 0);
  for (const Dtype dtype : all_dtypes()) {
    for (std::size_t length = 1; length <= 300; ++length) {
      uint8_t* array = static_cast<uint8_t*>(mapping) + page - length * size_of(dtype);
      const std::vector<const void*> sources(12, array);
      reduce_many(dtype, {Op::max}, array, std::span(sources).first(2), length);
      reduce_many(dtype, {Op::max}, array, sources, length);
      scale(dtype, array, array, length, 0.5);
    }
  }
  EXPECT_EQ(munmap(mapping, 2 * page), 0);
}

TEST_P(Kernels, ReduceKeepsTheTargetOnTheLeft) {
  const std::array<float, 3> source = {1, 2, 3};
  std::array<float, 3> target = {10, 20, 30};
  reduce(Dtype::float32, {Op::sum}, target.data(), source.data(), 3);
  EXPECT_EQ(target, (std::array<float, 3>{11, 22, 33}));
  reduce(Dtype::float32, {Op::average}, target.data(), source.data(), 3);
  EXPECT_EQ(target, (std::array<float, 3>{12, 24, 36})) << "an average is a sum here";
  reduce(Dtype::float32, {Op::sum}, target.data(), target.data(), 3);
  EXPECT_EQ(target, (std::array<float, 3>{24, 48, 72})) << "source and target may be the same";
}

// ---- Scaling ----

__extension__ using Wide = __int128;
constexpr Wide kExact = Wide{1} << 53;

// The product of a factor, whose mantissa is made an integer, and an integer of 64 bits has 117 bits. Each halving
// rounds toward zero.
template <class T>
T naive_product(T value, Wide magnitude, double factor) {
  int exponent = 0;
  const auto mantissa = static_cast<Wide>(std::ldexp(std::frexp(std::abs(factor), &exponent), 53));
  exponent -= 53;
  Wide product = magnitude * mantissa;
  for (; exponent < 0 && product != 0; ++exponent) product /= 2;
  for (; exponent > 0 && product != 0 && product >> 64 == 0; --exponent) product *= 2;
  if ((value < 0) != (factor < 0)) product = -product;
  if (product > static_cast<Wide>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  if (product < static_cast<Wide>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(product);
}

template <class T>
T naive_scale(T value, double factor) {
  if constexpr (std::is_floating_point_v<T>) {
    // The reciprocal of an integer divides.
    for (const double divisor : {3.0, 7.0, 49.0}) {
      if (factor == 1 / divisor) return value / static_cast<T>(divisor);
    }
    return value * static_cast<T>(factor);
  } else {
    for (const int divisor : {2, 3, 7, 49, 64, 1000, 2048, 65535, 1 << 20}) {
      if (factor == 1.0 / divisor) return static_cast<T>(static_cast<Wide>(value) / divisor);
    }
    const double product = static_cast<double>(value) * factor;
    if (std::isnan(product)) return 0;
    const Wide magnitude = value < 0 ? -static_cast<Wide>(value) : static_cast<Wide>(value);
    if (std::isfinite(factor) && (magnitude > kExact || std::abs(product) >= static_cast<double>(kExact))) {
      return naive_product(value, magnitude, factor);
    }
    if (product >= std::ldexp(1.0, std::numeric_limits<T>::digits)) return std::numeric_limits<T>::max();
    if (product <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    return static_cast<T>(product);
  }
}
bool naive_scale(bool value, double) { return value; }

TEST_P(Kernels, ScaleAnyLengthAndAlignment) {
  for (const Dtype dtype : all_dtypes()) {
    for (const std::size_t length : lengths()) {
      for (const double factor : {1.0 / 3, 1.0, -2.5, 1e30, 0.0, static_cast<double>(INFINITY)}) {
        for (const bool in_place : {false, true}) {
          Block source = block(dtype, length);
          const Block before = source;
          Block own = block(dtype, length);
          Block& target = in_place ? source : own;
          const Block target_before = target;
          Block expected = target;
          with_codec(dtype, [&](auto read, auto write) {
            for (std::size_t i = 0; i < length; ++i) {
              const std::size_t at = i * size_of(dtype);
              write(expected.data() + at, naive_scale(read(before.memory.data() + before.offset + at), factor));
            }
          });
          scale(dtype, target.data(), source.data(), length, factor);
          for (std::size_t i = 0; i < length; ++i) {
            const std::size_t at = i * size_of(dtype);
            const bool copied = kind_of(dtype) == DtypeKind::logical || factor == 1.0;
            if (copied)
              ASSERT_EQ(std::memcmp(target.data() + at, before.memory.data() + before.offset + at, size_of(dtype)), 0);
            else
              ASSERT_TRUE(same(dtype, target.data() + at, expected.data() + at))
                  << name_of(dtype) << " element " << i << " of " << length << " times " << factor;
          }
          Block around = target;
          std::memcpy(around.data(), target_before.memory.data() + target.offset, length * size_of(dtype));
          ASSERT_EQ(around.memory, target_before.memory) << "bytes beside the target were written to";
        }
      }
    }
  }
}

// The products cover many numbers, often next to a boundary of rounding or truncation.
TEST_P(Kernels, ScaleEveryValueOfShortTypesByManyFactors) {
  std::vector<double> factors{0.5,       2.0,     1.0 + 0x1p-4, 1.0 + 0x1p-3 + 0x1p-12, 1.0 - 0x1p-12,
                              0x1p-9,    0x1p-20, -1.0,         0x1p-7 + 0x1p-24,       1e9,
                              -INFINITY, NAN,     1.0 / 3};
  for (int i = 0; i < 40; ++i) {
    const double mantissa = 1.0 + static_cast<double>(random_() >> 12) * 0x1p-52;
    factors.push_back(std::ldexp(pick(2) == 0 ? mantissa : -mantissa, static_cast<int>(pick(24)) - 12));
  }
  std::vector<uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  const auto* source = reinterpret_cast<const uint8_t*>(patterns.data());
  for (const Dtype dtype : {Dtype::int8, Dtype::uint8, Dtype::int16, Dtype::uint16, Dtype::float8_e4m3,
                            Dtype::float8_e5m2, Dtype::float16, Dtype::bfloat16}) {
    const std::size_t size = size_of(dtype);
    const std::size_t bytes = size == 1 ? 512 : 131072;
    Memory result(bytes);
    for (const double factor : factors) {
      scale(dtype, result.data(), source, bytes / size, factor);
      with_codec(dtype, [&](auto read, auto write) {
        for (std::size_t at = 0; at < bytes; at += size) {
          uint8_t expected[2];
          write(expected, naive_scale(read(source + at), factor));
          ASSERT_TRUE(same(dtype, &result[at], expected)) << name_of(dtype) << " byte " << at << " times " << factor;
        }
      });
    }
  }
}

// The numbers lie around every power of two and next to rounding boundaries of the conversion; some products lie around
// the limits of the range.
TEST_P(Kernels, ScaleLongIntegersOfEverySizeByManyFactors) {
  std::vector<uint64_t> numbers;
  for (int bit = 0; bit < 64; ++bit) {
    for (uint64_t beside = 0; beside < 5; ++beside) {
      numbers.push_back((uint64_t{1} << bit) + beside - 2);
      numbers.push_back(0 - (uint64_t{1} << bit) + beside - 2);
    }
    for (int i = 0; i < 8; ++i) numbers.push_back(random_() >> bit);
  }
  std::vector<double> factors{0.5,     2.0,       -1.0,     1.0 + 0x1p-52, 1.0 - 0x1p-53, 0x1p-11, 0x1p32,
                              -0x1p31, 0x1p-1074, 0x1p1023, 0x1p-64,       0x1p63,        0x1p64,  0x1p11,
                              0.3,     1.0 / 3,   -1.0 / 3, NAN,           -INFINITY};
  for (int i = 0; i < 60; ++i) {
    const double mantissa = 1.0 + static_cast<double>(random_() >> 12) * 0x1p-52;
    factors.push_back(std::ldexp(pick(2) == 0 ? mantissa : -mantissa, static_cast<int>(pick(80)) - 50));
  }
  const auto* source = reinterpret_cast<const uint8_t*>(numbers.data());
  for (const Dtype dtype : {Dtype::int32, Dtype::uint32, Dtype::int64, Dtype::uint64}) {
    const std::size_t size = size_of(dtype);
    const std::size_t bytes = numbers.size() * sizeof numbers[0];
    Memory result(bytes);
    for (const double factor : factors) {
      scale(dtype, result.data(), source, bytes / size, factor);
      with_codec(dtype, [&](auto read, auto write) {
        for (std::size_t at = 0; at < bytes; at += size) {
          uint8_t expected[8];
          write(expected, naive_scale(read(source + at), factor));
          ASSERT_TRUE(same(dtype, &result[at], expected))
              << name_of(dtype) << " " << read(source + at) << " times " << factor;
        }
      });
    }
  }
}

// 1.0 / n divides sums that float64 cannot hold exactly, rounded toward zero; also in place and at odd addresses.
TEST_P(Kernels, DivideLongIntegersExactly) {
  std::vector<uint64_t> numbers{
      0, 1, ~uint64_t{0}, uint64_t{1} << 63, (uint64_t{1} << 63) - 1, (uint64_t{1} << 53) + 1};
  for (int i = 0; i < 200; ++i) numbers.push_back(random_() >> pick(12));
  const std::size_t bytes = numbers.size() * sizeof numbers[0];
  for (const int divisor : {2, 3, 7, 49, 64, 1000, 65535}) {
    Memory memory(bytes + 1);
    uint8_t* odd = memory.data() + 1;
    std::memcpy(odd, numbers.data(), bytes);
    scale(Dtype::int64, odd, odd, numbers.size(), 1.0 / divisor);
    Memory positive(bytes);
    scale(Dtype::uint64, positive.data(), numbers.data(), numbers.size(), 1.0 / divisor);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      int64_t signed_quotient = 0;
      uint64_t quotient = 0;
      std::memcpy(&signed_quotient, odd + i * 8, 8);
      std::memcpy(&quotient, positive.data() + i * 8, 8);
      ASSERT_EQ(signed_quotient, static_cast<int64_t>(numbers[i]) / divisor) << numbers[i] << " by " << divisor;
      ASSERT_EQ(quotient, numbers[i] / static_cast<uint64_t>(divisor)) << numbers[i] << " by " << divisor;
    }
  }
}

// All values of a small real type.
template <class Bits>
void check_small_quotients(Dtype dtype, float (*to_float)(Bits), Bits (*from_float)(float)) {
  std::vector<Bits> values(std::size_t{1} << (8 * sizeof(Bits)));
  std::iota(values.begin(), values.end(), Bits{0});
  std::vector<Bits> quotients(values.size());
  for (const int divisor : {3, 5, 6, 7, 48, 49}) {
    scale(dtype, quotients.data(), values.data(), values.size(), 1.0 / divisor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = to_float(from_float(to_float(values[i]) / static_cast<float>(divisor)));
      const float quotient = to_float(quotients[i]);
      ASSERT_TRUE(quotient == expected || (std::isnan(quotient) && std::isnan(expected)))
          << name_of(dtype) << " " << to_float(values[i]) << " by " << divisor << " is " << quotient;
    }
  }
}

TEST_P(Kernels, DivideEverySmallRealByTheNumberOfRanks) {
  check_small_quotients<uint16_t>(Dtype::float16, float16_to_float, float_to_float16);
  check_small_quotients<uint16_t>(Dtype::bfloat16, bfloat16_to_float, float_to_bfloat16);
  check_small_quotients<uint8_t>(Dtype::float8_e4m3, float8_e4m3_to_float, float_to_float8_e4m3);
  check_small_quotients<uint8_t>(Dtype::float8_e5m2, float8_e5m2_to_float, float_to_float8_e5m2);
}

TEST(RealDivisor, IsThatOfARoundedReciprocal) {
  for (const int divisor : {3, 5, 6, 7, 10, 48, 49, 1000, kMostRealDivisor - 1}) {
    EXPECT_EQ(real_divisor(1.0 / divisor), divisor);
    EXPECT_EQ(real_divisor(-1.0 / divisor), 0);
  }
  for (const double factor : {0.0, 1.0, 3.0, 0.3, 0.5, 1.0 / 64, 1.0 / kMostRealDivisor, 1.0 / (kMostRealDivisor + 1),
                              1e-300, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    EXPECT_EQ(real_divisor(factor), 0) << factor;
  }
}

// The average of n ranks is the sum with the factor 1.0 / n. The product of a value and the rounded factor is often
// another number than the rounded quotient.
template <class T>
void check_quotients(Dtype dtype, std::mt19937_64& random) {
  int different = 0;
  for (const int divisor : {2, 3, 5, 6, 7, 48, 49, 1000, 65535}) {
    std::vector<T> values(1000);
    for (T& value : values) value = std::ldexp(static_cast<T>(random()), static_cast<int>(random() % 60) - 90);
    std::vector<T> quotients(values.size());
    scale(dtype, quotients.data(), values.data(), values.size(), 1.0 / divisor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(quotients[i], values[i] / static_cast<T>(divisor))
          << name_of(dtype) << " " << values[i] << " by " << divisor;
      different += quotients[i] != values[i] * static_cast<T>(1.0 / divisor) ? 1 : 0;
    }
  }
  EXPECT_GT(different, 1000);
}

TEST_P(Kernels, DivideRealsByTheNumberOfRanksWithOneRounding) {
  check_quotients<float>(Dtype::float32, random_);
  check_quotients<double>(Dtype::float64, random_);
}

INSTANTIATE_TEST_SUITE_P(OnEachTarget, Kernels, ::testing::ValuesIn(test::instruction_sets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

TEST(KernelTarget, IsTheBestOfThisMachine) {
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_EQ(kernel_target(), hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()));
}

// ---- User operations ----

// a * 2 + b is neither commutative nor associative, so any other order gives another result.
void twice_plus(const void* source, void* target, std::size_t count, int dtype, void* context) {
  ASSERT_EQ(dtype, static_cast<int>(Dtype::int32));
  ++*static_cast<int*>(context);
  const auto* a = static_cast<const int32_t*>(source);
  auto* b = static_cast<int32_t*>(target);
  for (std::size_t i = 0; i < count; ++i) b[i] = 2 * a[i] + b[i];
}

TEST(UserOp, FoldsFromTheLowestRankUp) {
  int calls = 0;
  const UserOp user = {twice_plus, &calls, false};
  for (const std::size_t count : {0, 1, 100, 4096, 4097, 20000}) {
    for (int source_count = 1; source_count <= 5; ++source_count) {
      for (int alias = -1; alias < source_count; ++alias) {
        std::vector<std::vector<int32_t>> values(source_count, std::vector<int32_t>(count));
        std::vector<int32_t> own(count), expected(count);
        std::vector<const void*> sources;
        for (std::size_t i = 0; i < count; ++i) {
          for (int k = 0; k < source_count; ++k) values[k][i] = static_cast<int32_t>((i * 7 + k * 3) % 11);
          expected[i] = values[0][i];
          for (int k = 1; k < source_count; ++k) expected[i] = 2 * expected[i] + values[k][i];
        }
        for (auto& v : values) sources.push_back(v.data());
        std::vector<int32_t>& target = alias < 0 ? own : values[alias];
        reduce_many(Dtype::int32, {Op::user, &user}, target.data(), sources, count);
        ASSERT_EQ(target, expected) << count << " elements, " << source_count << " sources, target is " << alias;
      }
    }
  }
  EXPECT_GT(calls, 0);
}

TEST(UserOp, GetsAlignedMemoryAndTheTargetAsLowerRank) {
  int calls = 0;
  const UserOp user = {[](const void* source, void* target, std::size_t count, int dtype, void* context) {
                         EXPECT_EQ(reinterpret_cast<std::uintptr_t>(source) % alignof(int32_t), 0u);
                         EXPECT_EQ(reinterpret_cast<std::uintptr_t>(target) % alignof(int32_t), 0u);
                         twice_plus(source, target, count, dtype, context);
                       },
                       &calls, false};
  const std::array<int32_t, 2> lower = {5, 7}, higher = {1, 2};
  Memory memory(32);
  std::memcpy(memory.data() + 1, lower.data(), 8);
  std::memcpy(memory.data() + 17, higher.data(), 8);
  reduce(Dtype::int32, {Op::user, &user}, memory.data() + 1, memory.data() + 17, 2);
  EXPECT_EQ(load<int32_t>(memory.data() + 1), 11);
  EXPECT_EQ(load<int32_t>(memory.data() + 5), 16);
  EXPECT_EQ(calls, 1);
}

// ---- Errors ----

TEST(ReduceDeathTest, AbortsOnUnsupportedOperations) {
  float number = 1;
  EXPECT_DEATH(reduce(Dtype::float32, {Op::bit_and}, &number, &number, 1), "supports");
  EXPECT_DEATH(reduce(Dtype::float32, {Op::user}, &number, &number, 1), "user");
  EXPECT_DEATH(reduce_many(Dtype::float32, {Op::sum}, &number, {}, 1), "sources");
}

}  // namespace
}  // namespace fdl
