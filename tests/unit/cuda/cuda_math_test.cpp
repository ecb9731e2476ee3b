// These tests run the kernels' bodies on the CPU: all conversions, folds and scalings compared bit by bit with
// src/data, and the assignment of elements to threads for thousands of seeded shapes and alignments.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/pack_tables.h"
#include "data/half.h"
#include "data/reduce.h"

namespace fdl::cuda {
namespace {

constexpr unsigned kSeed = 20240611;

// ---- Conversions ----

template <class Format, class Bits>
void expect_widens(const char* name, float (*reference)(Bits)) {
  for (uint32_t pattern = 0; pattern <= std::numeric_limits<Bits>::max(); ++pattern) {
    const float expected = reference(static_cast<Bits>(pattern));
    const float widened = Format::widen(pattern);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(widened)) << name << " " << pattern;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(widened), std::bit_cast<uint32_t>(expected)) << name << " " << pattern;
    }
  }
}

TEST(SmallReals, WidenEveryPatternExactly) {
  expect_widens<Float16Format, uint16_t>("float16", float16_to_float);
  expect_widens<Bfloat16Format, uint16_t>("bfloat16", bfloat16_to_float);
  expect_widens<Float8E4m3Format, uint8_t>("float8_e4m3", float8_e4m3_to_float);
  expect_widens<Float8E5m2Format, uint8_t>("float8_e5m2", float8_e5m2_to_float);
}

template <class Format, class Bits>
void expect_narrows(float value, Bits (*reference)(float), float (*widen)(Bits)) {
  const uint32_t expected = reference(value);
  const uint32_t narrowed = Format::narrow(value);
  if (std::isnan(widen(static_cast<Bits>(expected)))) {
    ASSERT_TRUE(std::isnan(widen(static_cast<Bits>(narrowed)))) << value;
  } else {
    ASSERT_EQ(narrowed, expected) << std::hexfloat << value;
  }
}

void expect_all_narrow(float value) {
  expect_narrows<Float16Format>(value, float_to_float16, float16_to_float);
  expect_narrows<Bfloat16Format>(value, float_to_bfloat16, bfloat16_to_float);
  expect_narrows<Float8E4m3Format>(value, float_to_float8_e4m3, float8_e4m3_to_float);
  expect_narrows<Float8E5m2Format>(value, float_to_float8_e5m2, float8_e5m2_to_float);
}

TEST(SmallReals, NarrowWithTheRoundingOfTheCpu) {
  // The cases are those where rounding changes: every value of the upper 16 bits, with lower bits below, at and above
  // one half.
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      expect_all_narrow(std::bit_cast<float>(upper << 16 | lower));
    }
  }
}

// Finds the number of a format that is nearest to a double, ties to even, by trying all of them.
template <class Bits>
Bits nearest(double value, float (*widen)(Bits), uint32_t largest) {
  const double size = std::fabs(value);
  uint32_t low = 0, high = largest;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (widen(static_cast<Bits>(middle)) <= size ? low : high) = middle;
  }
  const double below = widen(static_cast<Bits>(low));
  const double above = widen(static_cast<Bits>(high));
  uint32_t result = low;
  if (size - below > above - size || (size - below == above - size && low % 2 == 1)) result = high;
  return static_cast<Bits>(result | (std::signbit(value) ? std::numeric_limits<Bits>::max() / 2 + 1 : 0));
}

TEST(SmallReals, AreRoundedOnceFromFloat64) {
  std::mt19937_64 random(kSeed);
  using Half = Real<Dtype::float16>;
  using Brain = Real<Dtype::bfloat16>;
  // The value is slightly off the middle between two numbers. Rounding it twice, through float32, would give the other
  // number.
  const double tricky = 1.0 + std::ldexp(1, -11) + std::ldexp(1, -40);
  EXPECT_NE(Half::narrow<double>(tricky), Half::narrow<float>(static_cast<float>(tricky)));
  for (int i = 0; i < 200000; ++i) {
    const auto half = static_cast<uint16_t>(random() % 0x7b00);
    const double between = (double{float16_to_float(half)} + float16_to_float(static_cast<uint16_t>(half + 1))) / 2;
    for (const double off : {0.0, 1e-14, -1e-14, 1e-3, -1e-3}) {
      const double value = (i % 2 ? -1 : 1) * between * (1 + off);
      ASSERT_EQ(Half::narrow<double>(value), nearest(value, float16_to_float, 0x7bff)) << std::hexfloat << value;
    }
    const auto brain = static_cast<uint16_t>(random() % 0x7f00);
    const double middle = (double{bfloat16_to_float(brain)} + bfloat16_to_float(static_cast<uint16_t>(brain + 1))) / 2;
    for (const double off : {0.0, 1e-14, -1e-14, 1e-3, -1e-3}) {
      const double value = middle * (1 + off);
      ASSERT_EQ(Brain::narrow<double>(value), nearest(value, bfloat16_to_float, 0x7f7f)) << std::hexfloat << value;
    }
  }
  EXPECT_EQ(Half::narrow<double>(1e300), 0x7c00);
  EXPECT_EQ(Half::narrow<double>(-1e300), 0xfc00);
  EXPECT_EQ(Half::narrow<double>(1e-300), 0);
  EXPECT_TRUE(std::isnan(float16_to_float(Half::narrow<double>(NAN))));
}

// ---- Quotients, against the division of the CPU ----

template <class T>
void expect_quotient(T value, int divisor) {
  const T expected = value / static_cast<T>(divisor);
  const T result = quotient(value, static_cast<T>(divisor), static_cast<T>(1.0 / divisor));
  ASSERT_TRUE(result == expected || (std::isnan(result) && std::isnan(expected)))
      << std::hexfloat << value << " / " << divisor << " is " << expected << ", not " << result;
}

template <class T, class Bits>
void expect_quotients(int divisor, std::mt19937_64& random) {
  constexpr int kMantissa = std::numeric_limits<T>::digits - 1;
  for (int i = 0; i < 20000; ++i) {
    const auto any = static_cast<Bits>(random());
    expect_quotient(bits_as<T>(any), divisor);
    const auto subnormal = static_cast<Bits>(any & ((Bits{1} << kMantissa) - 1));
    expect_quotient(bits_as<T>(static_cast<Bits>(subnormal >> i % kMantissa)), divisor);
    // Midpoints of two subnormal quotients, and their neighbours.
    const T unit = std::numeric_limits<T>::denorm_min();
    const T middle = static_cast<T>(random() % 2000) * static_cast<T>(divisor) / 2 * (i % 2 == 0 ? unit : -unit);
    for (const T value : {middle, middle + unit, middle - unit}) expect_quotient(value, divisor);
  }
  using Limits = std::numeric_limits<T>;
  for (const T value : {T{0}, Limits::min(), Limits::max(), Limits::infinity(), Limits::quiet_NaN()}) {
    expect_quotient(value, divisor);
    expect_quotient(-value, divisor);
  }
}

TEST(Quotient, IsThatOfTheCpu) {
  std::mt19937_64 random(kSeed);
  for (const int divisor : {3, 5, 6, 7, 12, 48, 49, 1000, 65535, kMostRealDivisor - 2, kMostRealDivisor - 1}) {
    expect_quotients<float, uint32_t>(divisor, random);
    expect_quotients<double, uint64_t>(divisor, random);
  }
}

// ---- Memory with guard bytes on both sides ----

struct Guarded {
  Guarded(std::size_t bytes, std::size_t offset) : offset_(offset), all_(bytes + offset + 64, 0xa5), bytes_(bytes) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(all_.data() + offset_); }
  void expect_untouched_around(const std::string& what) const {
    for (std::size_t i = 0; i < offset_; ++i) ASSERT_EQ(all_[i], 0xa5) << what << ": before";
    for (std::size_t i = offset_ + bytes_; i < all_.size(); ++i) ASSERT_EQ(all_[i], 0xa5) << what << ": behind";
  }

 private:
  std::size_t offset_;
  std::vector<uint8_t> all_;  // its memory is 16-byte aligned
  std::size_t bytes_;
};

bool is_nan(Dtype dtype, const std::byte* element) {
  uint8_t byte;
  uint16_t half;
  float single;
  double wide;
  std::memcpy(&byte, element, 1);
  switch (dtype) {
    case Dtype::float16:
      std::memcpy(&half, element, 2);
      return std::isnan(float16_to_float(half));
    case Dtype::bfloat16:
      std::memcpy(&half, element, 2);
      return std::isnan(bfloat16_to_float(half));
    case Dtype::float8_e4m3:
      return std::isnan(float8_e4m3_to_float(byte));
    case Dtype::float8_e5m2:
      return std::isnan(float8_e5m2_to_float(byte));
    case Dtype::float32:
      std::memcpy(&single, element, 4);
      return std::isnan(single);
    case Dtype::float64:
      std::memcpy(&wide, element, 8);
      return std::isnan(wide);
    default:
      return false;
  }
}

// Compares bit by bit, except for what reduce.h leaves undefined: the payload of a NaN and the sign of a zero.
void expect_same(Dtype dtype, const std::byte* actual, const std::byte* expected, std::size_t count,
                 const std::string& what) {
  const std::size_t size = size_of(dtype);
  const bool is_signed_zero_possible = is_real(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(actual + i * size, expected + i * size, size) == 0) continue;
    if (is_nan(dtype, actual + i * size) && is_nan(dtype, expected + i * size)) continue;
    uint64_t a = 0, b = 0;
    std::memcpy(&a, actual + i * size, size);
    std::memcpy(&b, expected + i * size, size);
    const uint64_t sign = uint64_t{1} << (8 * size - 1);
    if (is_signed_zero_possible && (a | sign) == sign && (b | sign) == sign) continue;
    FAIL() << what << ": element " << i << " is " << std::hex << a << ", not " << b;
  }
}

void fill_random(std::byte* memory, std::size_t bytes, std::mt19937_64& random) {
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>(random());
}

// ---- Reduction: every type and operation, against reduce_many and scale ----

using ReduceBody = void (*)(const ReduceTable&, uint32_t, unsigned);

ReduceBody body_of(Dtype dtype) {
  switch (dtype) {
#define ROW(name, type, kind)                                              \
  case Dtype::name:                                                        \
    return [](const ReduceTable& table, uint32_t block, unsigned thread) { \
      reduce_part<Dtype::name>(table, block, thread);                      \
    };
    FDL_DTYPES(ROW)
#undef ROW
  }
  return nullptr;
}

void run_pack(const Packing& packing, int* launches = nullptr);

// As Launches::reduce() does.
void run_reduce(Dtype dtype, Op op, std::byte* target, const std::vector<const void*>& sources, std::size_t count,
                double factor) {
  if (real_divisor(factor) != 0 && is_real(dtype)) {
    const DeviceSegment whole{target, 0, count};
    run_reduce(dtype, op, target, sources, count, 1.0);
    return run_pack({std::span(&whole, 1), dtype, target, dtype, false, factor});
  }
  ReduceTable table{};
  table.target = target;
  table.count = count;
  set_factor(table, dtype, factor);
  table.source_count = static_cast<uint32_t>(sources.size());
  table.op = op;
  for (std::size_t i = 0; i < sources.size(); ++i) table.source[i] = static_cast<const std::byte*>(sources[i]);
  const auto size = static_cast<unsigned>(size_of(dtype));
  table.head = common_head(table, size);
  const uint64_t blocks = reduce_blocks(reduce_plan(table, 16 / size));
  for (uint32_t block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < kThreads; ++thread) body_of(dtype)(table, block, thread);
  }
}

struct ReduceCase {
  Dtype dtype;
  Op op;
  std::size_t source_count, count, offset;
  bool apart;     // sources are aligned differently
  bool in_place;  // the target is the last source
  double factor;
};

void expect_reduces(const ReduceCase& c, std::mt19937_64& random) {
  const std::size_t size = size_of(c.dtype);
  const std::string what = std::string(name_of(c.op)) + " of " + std::to_string(c.source_count) + " times " +
                           std::to_string(c.count) + " " + std::string(name_of(c.dtype)) + " at " +
                           std::to_string(c.offset) + (c.apart ? " apart" : "") + " times " + std::to_string(c.factor);
  std::vector<Guarded> memory;
  std::vector<const void*> sources;
  for (std::size_t i = 0; i < c.source_count; ++i)
    memory.emplace_back(c.count * size, c.offset + (c.apart ? i * size : 0));
  for (Guarded& source : memory) {
    fill_random(source.data(), c.count * size, random);
    sources.push_back(source.data());
  }
  std::vector<std::byte> expected(c.count * size + 1);
  reduce_many(c.dtype, {c.op}, expected.data(), sources, c.count);
  scale(c.dtype, expected.data(), expected.data(), c.count, c.factor);
  Guarded own(c.count * size, c.offset);
  Guarded& target = c.in_place ? memory.back() : own;
  run_reduce(c.dtype, c.op, target.data(), sources, c.count, c.factor);
  expect_same(c.dtype, target.data(), expected.data(), c.count, what);
  target.expect_untouched_around(what);
}

TEST(ReduceMath, GivesTheBitsOfTheCpuForAllTypesAndOperations) {
  std::mt19937_64 random(kSeed);
  for (int d = 0; d < kDtypeCount; ++d) {
    for (int o = 0; o < kOpCount; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      const auto op = static_cast<Op>(o);
      if (!supports(dtype, op) || op == Op::user) continue;
      for (const std::size_t sources : {2u, 3u, 9u}) {
        for (const double factor : {1.0, 0.125, -3.7, 1e10, 1.0 / 3, 1.0 / 48}) {
          expect_reduces({dtype, op, sources, 1237, 0, false, sources == 3, factor}, random);
        }
      }
      expect_reduces({dtype, op, 2, 301, size_of(dtype), false, false, 0.5}, random);
      expect_reduces({dtype, op, 4, 301, size_of(dtype), true, true, 1.0}, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ReduceMath, FoldsEveryPairOfFloat8) {
  std::vector<uint8_t> first, second;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      first.push_back(static_cast<uint8_t>(a));
      second.push_back(static_cast<uint8_t>(b));
    }
  }
  for (const Dtype dtype : {Dtype::float8_e4m3, Dtype::float8_e5m2}) {
    for (const Op op : {Op::sum, Op::product, Op::min, Op::max}) {
      for (const double factor : {1.0, 0.5, 1.0 / 3}) {
        std::vector<std::byte> expected(first.size()), folded(first.size());
        const std::vector<const void*> sources{first.data(), second.data()};
        reduce_many(dtype, {op}, expected.data(), sources, first.size());
        scale(dtype, expected.data(), expected.data(), first.size(), factor);
        run_reduce(dtype, op, folded.data(), sources, first.size(), factor);
        expect_same(dtype, folded.data(), expected.data(), first.size(), std::string(name_of(op)));
      }
    }
  }
}

TEST(ReduceMath, FoldsEachElementOnceForAnyCountAndAlignment) {
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 3000; ++i) {
    const auto dtype = static_cast<Dtype>(random() % kDtypeCount);
    const std::size_t count = random() % (i % 50 == 0 ? 20000 : 700) + 1;
    const std::size_t offset = random() % 17 * size_of(dtype);
    expect_reduces({dtype, Op::sum, 2 + random() % 3, count, offset, random() % 2 == 0, random() % 2 == 0,
                    random() % 2 == 0 ? 1.0 : 0.25},
                   random);
    if (HasFatalFailure()) return;
  }
}

// ---- Packing ----

Dtype random_real(std::mt19937_64& random) {
  constexpr Dtype kReals[] = {Dtype::float16, Dtype::bfloat16,    Dtype::float32,
                              Dtype::float64, Dtype::float8_e4m3, Dtype::float8_e5m2};
  return kReals[random() % 6];
}

// A plain reference: the value of one element, and the bytes of a number.
double read_real(Dtype dtype, const std::byte* from) {
  uint16_t half = 0;
  std::memcpy(&half, from, std::min<std::size_t>(size_of(dtype), 2));
  float single = 0;
  double wide = 0;
  switch (dtype) {
    case Dtype::float16:
      return float16_to_float(half);
    case Dtype::bfloat16:
      return bfloat16_to_float(half);
    case Dtype::float8_e4m3:
      return float8_e4m3_to_float(static_cast<uint8_t>(half));
    case Dtype::float8_e5m2:
      return float8_e5m2_to_float(static_cast<uint8_t>(half));
    case Dtype::float32:
      std::memcpy(&single, from, 4);
      return single;
    default:
      std::memcpy(&wide, from, 8);
      return wide;
  }
}

void write_real(Dtype dtype, std::byte* to, float value) {
  uint16_t half = 0;
  switch (dtype) {
    case Dtype::float16:
      half = float_to_float16(value);
      break;
    case Dtype::bfloat16:
      half = float_to_bfloat16(value);
      break;
    case Dtype::float8_e4m3:
      half = float_to_float8_e4m3(value);
      break;
    case Dtype::float8_e5m2:
      half = float_to_float8_e5m2(value);
      break;
    default:
      std::memcpy(to, &value, 4);
      return;
  }
  std::memcpy(to, &half, size_of(dtype));
}

void change_plainly(Dtype from_dtype, const std::byte* from, Dtype to_dtype, std::byte* to, std::size_t count,
                    double factor) {
  if (from_dtype == to_dtype) return scale(to_dtype, to, from, count, factor);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* const source = from + i * size_of(from_dtype);
    std::byte* const target = to + i * size_of(to_dtype);
    const double value = read_real(from_dtype, source);
    if (from_dtype == Dtype::float64 || to_dtype == Dtype::float64) {
      const double product[1] = {factor == 1.0 ? value : factor == 1.0 / 7 ? value / 7 : value * factor};
      MultiplyFloat64::store(to_dtype, target, product);  // the rounding is tested above
    } else {
      const auto single = static_cast<float>(value);
      write_real(to_dtype, target,
                 factor == 1.0       ? single
                 : factor == 1.0 / 7 ? single / 7
                                     : single * static_cast<float>(factor));
    }
  }
}

void run_pack(const Packing& packing, int* launches) {
  const bool divides = real_divisor(packing.factor) != 0;
  const auto body = packing.is_copy()                                ? copy_tile
                    : kind_of(packing.tensors) == DtypeKind::integer ? change_tile<ScaleIntegers>
                    : packing.tensors == Dtype::float64 || packing.in_packed == Dtype::float64
                        ? (divides ? change_tile<DivideFloat64> : change_tile<MultiplyFloat64>)
                        : (divides ? change_tile<DivideReals> : change_tile<MultiplyReals>);
  const Status status = for_each_table(packing, [&](const PackTable& table) {
    if (launches != nullptr) ++*launches;
    for (uint32_t block = 0; block < table.tile_count; ++block) {
      for (unsigned thread = 0; thread < kThreads; ++thread) body(table, block, thread);
    }
    return ok_status();
  });
  ASSERT_TRUE(status.ok());
}

struct PackCase {
  Dtype tensors, in_packed;
  double factor;
  std::vector<std::size_t> counts;
  std::size_t gap;            // elements between segments
  std::size_t packed_offset;  // bytes
  bool some_are_missing;
};

// Packs and compares with the reference, unpacks into other tensors and compares again. The bytes around must not
// change.
void expect_packs(const PackCase& c, std::mt19937_64& random) {
  const std::size_t tensor_size = size_of(c.tensors), packed_size = size_of(c.in_packed);
  const std::string what = std::string(name_of(c.tensors)) + " as " + std::string(name_of(c.in_packed)) + " times " +
                           std::to_string(c.factor) + ", " + std::to_string(c.counts.size()) + " tensors";
  std::vector<Guarded> tensors, outputs;
  std::vector<DeviceSegment> segments, back;
  std::size_t first = 0;
  for (const std::size_t count : c.counts) {
    const std::size_t offset = random() % 5 == 0 ? random() % 16 * tensor_size : 0;
    tensors.emplace_back(count * tensor_size, offset);
    outputs.emplace_back(count * tensor_size, offset);
    fill_random(tensors.back().data(), count * tensor_size, random);
    const bool is_missing = c.some_are_missing && random() % 3 == 0;
    segments.push_back({is_missing ? nullptr : tensors.back().data(), first, count});
    back.push_back({is_missing ? nullptr : outputs.back().data(), first, count});
    first += count + c.gap;
  }
  Guarded packed(first * packed_size, c.packed_offset);
  std::vector<std::byte> expected(first * packed_size, std::byte{0xa5});
  for (const DeviceSegment& segment : segments) {
    std::byte* const to = expected.data() + segment.first * packed_size;
    if (segment.tensor == nullptr) {
      std::memset(to, 0, segment.count * packed_size);
    } else {
      change_plainly(c.tensors, static_cast<std::byte*>(segment.tensor), c.in_packed, to, segment.count, c.factor);
    }
  }
  run_pack({segments, c.tensors, packed.data(), c.in_packed, false, c.factor});
  expect_same(c.in_packed, packed.data(), expected.data(), first, what);
  packed.expect_untouched_around(what);

  run_pack({back, c.tensors, packed.data(), c.in_packed, true, c.factor});
  for (std::size_t i = 0; i < back.size(); ++i) {
    outputs[i].expect_untouched_around(what + ", unpacked");
    if (back[i].tensor == nullptr) continue;
    std::vector<std::byte> wanted(back[i].count * tensor_size);
    change_plainly(c.in_packed, packed.data() + back[i].first * packed_size, c.tensors, wanted.data(), back[i].count,
                   c.factor);
    expect_same(c.tensors, outputs[i].data(), wanted.data(), back[i].count, what + ", unpacked");
  }
}

TEST(PackMath, MovesEachElementOnceForAnyShapesAndAlignment) {
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 3000; ++i) {
    PackCase c;
    c.tensors = i % 2 == 0 ? static_cast<Dtype>(random() % kDtypeCount) : random_real(random);
    c.in_packed = i % 2 == 0 ? c.tensors : random_real(random);
    constexpr double kFactors[] = {1.0, 0.3, 1.0 / 7, 1.0};
    c.factor = kFactors[random() % 4];
    for (std::size_t k = random() % 12 + 1; k > 0; --k) c.counts.push_back(random() % (i % 40 == 0 ? 9000 : 150));
    c.gap = random() % 3 == 0 ? random() % 5 : 0;
    c.packed_offset = random() % 3 == 0 ? random() % 8 * size_of(c.in_packed) : 0;
    c.some_are_missing = random() % 4 == 0;
    expect_packs(c, random);
    if (HasFatalFailure()) return;
  }
}

TEST(PackMath, PacksHundredsOfTensorsInOneLaunch) {
  std::mt19937_64 random(kSeed);
  std::vector<uint32_t> numbers(5000), packed(5000), back(5000);
  for (uint32_t& number : numbers) number = static_cast<uint32_t>(random());
  for (const auto& [tensors, expected_launches] : {std::pair{200u, 1}, std::pair{201u, 2}, std::pair{5000u, 25}}) {
    std::vector<DeviceSegment> segments, targets;
    for (std::size_t i = 0; i < tensors; ++i) segments.push_back({&numbers[i], i, 1});
    for (std::size_t i = 0; i < tensors; ++i) targets.push_back({&back[i], i, 1});
    int launches = 0;
    auto* const memory = reinterpret_cast<std::byte*>(packed.data());
    run_pack({segments, Dtype::uint32, memory, Dtype::uint32, false, 1.0}, &launches);
    EXPECT_EQ(launches, expected_launches);
    run_pack({targets, Dtype::uint32, memory, Dtype::uint32, true, 1.0});
    EXPECT_TRUE(std::equal(back.begin(), back.begin() + tensors, numbers.begin()));
  }
}

TEST(PackMath, DividesTensorsOfAnySizeIntoEqualTiles) {
  // One tensor has 64 MiB and many have a thousand bytes, one of them misaligned. No block has more than a tile or
  // nothing, and each begins where the one before it ended.
  std::vector<DeviceSegment> segments;
  auto* const somewhere = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  std::size_t first = 0;
  for (const std::size_t count : {std::size_t{1}, std::size_t{16} << 20, std::size_t{250}, std::size_t{3}}) {
    segments.push_back({somewhere + first * 8, first, count});
    first += count;
  }
  const Packing packing{segments, Dtype::float32, somewhere + (uintptr_t{1} << 36), Dtype::bfloat16, false, 1.0};
  int tables = 0;
  ASSERT_TRUE(for_each_table(packing, [&](const PackTable& table) {
                ++tables;
                EXPECT_GE(table.tile_count, kBlocksWanted / 2);
                EXPECT_LE(table.tile_count, kBlocksWanted + 8);
                uint32_t last_end = 0;
                for (uint32_t tile = 0; tile < table.tile_count; ++tile) {
                  const uint32_t segment = segment_of(table, tile);
                  const bool begins = table.first_tile[segment] == tile;
                  if (begins && segment > 0) {
                    EXPECT_EQ(last_end, table.count[segment - 1]);
                  }
                  const Sides sides = sides_of(table, segment, 2);
                  const Tile part = tile_of(tile - table.first_tile[segment], table.count[segment],
                                            change_head(table, sides), table.tile_elements, kVectorElements);
                  EXPECT_EQ(part.head_begin, begins ? 0 : last_end);
                  EXPECT_LT(part.head_begin, part.end);
                  last_end = part.end;
                  EXPECT_LE(part.end - part.body_begin, table.tile_elements);
                }
                EXPECT_EQ(last_end, table.count[table.segment_count - 1]);
                return ok_status();
              }).ok());
  EXPECT_EQ(tables, 1);
}

TEST(PackMath, SplitsSegmentsThatAreTooLongOrTooFarApart) {
  // The test examines only the tables, because no machine has so much memory.
  auto* const somewhere = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  const std::vector<DeviceSegment> segments{
      {somewhere, 0, std::size_t{5} << 30}, {somewhere, std::size_t{9} << 30, 10}, {somewhere, 5, 10}};
  uint64_t bytes = 0;
  int tables = 0;
  const Packing packing{segments, Dtype::float32, somewhere, Dtype::float32, false, 1.0};
  ASSERT_TRUE(for_each_table(packing, [&](const PackTable& table) {
                ++tables;
                for (uint32_t i = 0; i < table.segment_count; ++i) bytes += table.count[i];
                EXPECT_LT(table.tile_count, uint32_t{1} << 31);
                return ok_status();
              }).ok());
  EXPECT_EQ(bytes, ((uint64_t{5} << 30) + 20) * 4);
  EXPECT_GT(tables, 5);
}

TEST(PackMath, StopsAtTheFirstFailedLaunch) {
  std::vector<DeviceSegment> segments(500, DeviceSegment{nullptr, 0, 1});
  for (std::size_t i = 0; i < segments.size(); ++i) segments[i].first = i;
  std::byte memory[500];
  int launches = 0;
  const Status status =
      for_each_table({segments, Dtype::uint8, memory, Dtype::uint8, false, 1.0},
                     [&](const PackTable&) { return ++launches == 2 ? Status(Code::transport, "no") : ok_status(); });
  EXPECT_EQ(status.text(), "no");
  EXPECT_EQ(launches, 2);
}

}  // namespace
}  // namespace fdl::cuda
