// Pack math decides which thread moves which elements of many tensors to or from one vector, and how they are
// converted. It is pure: the same bodies run on a device and, in tests, on the CPU.
//
//   segments 0        1    2                    one block moves one tile: a part of one segment
//   tiles    0 1 2 3  4    5 6 7 8 9 10         first_tile = 0 4 5: a block finds its segment by bisection
//
// Tiles of a segment begin where both sides are aligned to whole vectors. The elements before that (the head) are moved
// one by one by the first tile; those behind the last whole vector, by the last tile.
#pragma once

#include "cuda/kernels/small_real.h"

namespace fdl::cuda {

inline constexpr unsigned kThreads = 256;       // of a block
inline constexpr unsigned kMostSegments = 200;  // of a launch: as many as fit into a kernel's 4 KiB of parameters
inline constexpr unsigned kVectorElements = 8;  // of a conversion; copies move bytes

// The parameters of every packing kernel.
struct PackTable {
  std::byte* packed;
  Scaling scaling;
  uint32_t segment_count;
  uint32_t tile_count;
  uint32_t tile_elements;  // a multiple of kVectorElements; for a copy: bytes
  Dtype tensors;           // the element types of both sides; unused for a copy
  Dtype in_packed;
  bool unpacks;  // else it packs
  std::byte* tensor[kMostSegments];
  uint32_t first[kMostSegments];  // element of `packed`; for a copy: byte
  uint32_t count[kMostSegments];
  uint32_t first_tile[kMostSegments];
};
static_assert(sizeof(PackTable) <= 4096);

// ---- Work distribution ----

// Bytes before the next multiple of a power of two. (On a device, a remainder of addresses is a subroutine call, around
// which registers are spilled.)
FDL_BOTH unsigned before_next(uintptr_t address, unsigned power_of_two) {
  return static_cast<unsigned>(-address) & (power_of_two - 1);
}

// Elements before the first that is aligned on both sides, or kNever if there is none. `vector` elements are moved at
// once, by accesses of at most 16 bytes.
inline constexpr uint32_t kNever = ~uint32_t{0};
FDL_BOTH uint32_t head_of(uintptr_t from, unsigned from_size, uintptr_t to, unsigned to_size, unsigned vector) {
  const bool from_is_smaller = from_size <= to_size;
  const uintptr_t small = from_is_smaller ? from : to;
  const uintptr_t large = from_is_smaller ? to : from;
  const unsigned small_size = from_is_smaller ? from_size : to_size;
  const unsigned large_size = from_is_smaller ? to_size : from_size;
  const unsigned small_unit = small_size * vector < 16 ? small_size * vector : 16;
  const unsigned large_unit = large_size * vector < 16 ? large_size * vector : 16;
  const unsigned before = before_next(small, small_unit);
  if ((before & (small_size - 1)) != 0) return kNever;
  const unsigned head = before >> ((small_size > 1) + (small_size > 2) + (small_size > 4));
  return before_next(large + head * large_size, large_unit) == 0 ? head : kNever;
}

// The number of tiles of a segment. A segment that is no longer than its head is one tile.
FDL_BOTH uint32_t tiles_of(uint32_t count, uint32_t head, uint32_t tile_elements) {
  if (head == kNever) head = 0;
  if (count <= head) return 1;
  const uint32_t rest = count - head;
  return rest / tile_elements + (rest % tile_elements != 0 ? 1 : 0);
}

// The segment of a tile: the last one whose first tile is not behind the tile.
FDL_BOTH uint32_t segment_of(const PackTable& table, uint32_t tile) {
  // Bisection: the invariant is first_tile[low] <= tile, and high is behind the segment.
  uint32_t low = 0;
  uint32_t high = table.segment_count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (table.first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The work of one block: elements [head_begin, body_begin) and [tail_begin, end) one by one, and whole vectors between
// them.
struct Tile {
  uint32_t head_begin, body_begin, tail_begin, end;
};
FDL_BOTH Tile tile_of(uint32_t tile_in_segment, uint32_t count, uint32_t head, uint32_t tile_elements,
                      unsigned vector) {
  const bool has_vectors = head != kNever && head < count;
  const uint32_t skipped = has_vectors ? head : 0;
  Tile tile;
  tile.body_begin = skipped + tile_in_segment * tile_elements;
  tile.head_begin = tile_in_segment == 0 ? 0 : tile.body_begin;
  const uint32_t rest = count - tile.body_begin;
  tile.end = tile.body_begin + (rest < tile_elements ? rest : tile_elements);
  tile.tail_begin = has_vectors ? tile.end - ((tile.end - tile.body_begin) & (vector - 1)) : tile.body_begin;
  return tile;
}

// ---- Copies: bytes, in the largest unit that both sides allow ----

template <unsigned kUnit>
FDL_BOTH void copy_units(const std::byte* from, std::byte* to, uint32_t count, unsigned thread) {
  // Several loads are issued before the first store, so that their latencies overlap.
  constexpr unsigned kAtOnce = 4;
  uint32_t i = thread;
  for (; count > (kAtOnce - 1) * kThreads && i < count - (kAtOnce - 1) * kThreads; i += kAtOnce * kThreads) {
    Unit<kUnit> units[kAtOnce];
    FDL_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      units[k] = load_unit<kUnit>(from + static_cast<std::size_t>(i + k * kThreads) * kUnit);
    }
    FDL_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      store_unit<kUnit>(to + static_cast<std::size_t>(i + k * kThreads) * kUnit, units[k]);
    }
  }
  for (; i < count; i += kThreads) {
    const std::size_t at = static_cast<std::size_t>(i) * kUnit;
    store_unit<kUnit>(to + at, load_unit<kUnit>(from + at));
  }
}

// Fills the place of a missing tensor.
template <unsigned kUnit>
FDL_BOTH void zero_units(std::byte* to, uint32_t count, unsigned thread) {
  for (uint32_t i = thread; i < count; i += kThreads) {
    store_unit<kUnit>(to + static_cast<std::size_t>(i) * kUnit, Unit<kUnit>{});
  }
}

template <unsigned kUnit>
FDL_BOTH void copy_bytes(const std::byte* from, std::byte* to, uint32_t bytes, unsigned thread) {
  if (from == nullptr) {
    zero_units<kUnit>(to, bytes / kUnit, thread);
  } else {
    copy_units<kUnit>(from, to, bytes / kUnit, thread);
  }
}

// The largest unit to which both addresses can be aligned at once. A null source allows every unit.
FDL_BOTH unsigned common_unit(uintptr_t from, uintptr_t to) {
  const uintptr_t apart = from == 0 ? 0 : from ^ to;
  if (apart % 16 == 0) return 16;
  if (apart % 8 == 0) return 8;
  if (apart % 4 == 0) return 4;
  return apart % 2 == 0 ? 2 : 1;
}

// The two sides of a segment. A null `from` stands for zeros.
struct Sides {
  const std::byte* from;
  std::byte* to;
};
// The addresses of a segment on both sides, in the direction of the move.
FDL_BOTH Sides sides_of(const PackTable& table, uint32_t segment, unsigned packed_size) {
  std::byte* const packed = table.packed + static_cast<std::size_t>(table.first[segment]) * packed_size;
  if (table.unpacks) return {packed, table.tensor[segment]};
  return {table.tensor[segment], packed};
}

// Bytes before the first that is aligned to the common unit on both sides.
FDL_BOTH uint32_t copy_head(uintptr_t from, uintptr_t to) {
  const unsigned unit = common_unit(from, to);
  return before_next(to, unit);
}

// The body of the copying kernel: the share of one thread.
FDL_BOTH void copy_tile(const PackTable& table, uint32_t block, unsigned thread) {
  const uint32_t segment = segment_of(table, block);
  const Sides sides = sides_of(table, segment, 1);
  const auto from = reinterpret_cast<uintptr_t>(sides.from);
  const auto to = reinterpret_cast<uintptr_t>(sides.to);
  const unsigned unit = common_unit(from, to);
  const Tile tile =
      tile_of(block - table.first_tile[segment], table.count[segment], copy_head(from, to), table.tile_elements, unit);
  const auto part = [&](uint32_t begin) { return from == 0 ? nullptr : sides.from + begin; };
  if (tile.head_begin < tile.body_begin) {
    copy_bytes<1>(part(tile.head_begin), sides.to + tile.head_begin, tile.body_begin - tile.head_begin, thread);
  }
  const uint32_t bytes = tile.tail_begin - tile.body_begin;
  const std::byte* const source = part(tile.body_begin);
  std::byte* const target = sides.to + tile.body_begin;
  switch (unit) {
    case 16:
      copy_bytes<16>(source, target, bytes, thread);
      break;
    case 8:
      copy_bytes<8>(source, target, bytes, thread);
      break;
    case 4:
      copy_bytes<4>(source, target, bytes, thread);
      break;
    case 2:
      copy_bytes<2>(source, target, bytes, thread);
      break;
    default:
      copy_bytes<1>(source, target, bytes, thread);
  }
  copy_bytes<1>(part(tile.tail_begin), sides.to + tile.tail_begin, tile.end - tile.tail_begin, thread);
}

// ---- Conversions: kCount elements at a time. All threads of a launch have the same types. ----

template <Dtype kDtype, class Wide, int kCount>
FDL_BOTH void load_real(const std::byte* from, Wide (&values)[kCount]) {
  Elements<typename Real<kDtype>::Memory, kCount> elements;
  elements.load(from);
  FDL_UNROLL
  for (int i = 0; i < kCount; ++i) values[i] = Real<kDtype>::template widen<Wide>(elements.get(i));
}

template <Dtype kDtype, class Wide, int kCount>
FDL_BOTH void store_real(std::byte* to, const Wide (&values)[kCount]) {
  Elements<typename Real<kDtype>::Memory, kCount> elements;
  FDL_UNROLL
  for (int i = 0; i < kCount; ++i) elements.put(i, Real<kDtype>::template narrow<Wide>(values[i]));
  elements.store(to);
}

// Converts real types through float32, or through float64 if either is float64.
template <class Wide, bool kDivides>
struct CastReals {
  template <int kCount>
  FDL_BOTH static void load(Dtype dtype, const std::byte* from, Wide (&values)[kCount]) {
    switch (dtype) {
      case Dtype::float32:
        return load_real<Dtype::float32>(from, values);
      case Dtype::float16:
        return load_real<Dtype::float16>(from, values);
      case Dtype::bfloat16:
        return load_real<Dtype::bfloat16>(from, values);
      case Dtype::float8_e4m3:
        return load_real<Dtype::float8_e4m3>(from, values);
      case Dtype::float8_e5m2:
        return load_real<Dtype::float8_e5m2>(from, values);
      default:
        if constexpr (sizeof(Wide) == 8) load_real<Dtype::float64>(from, values);
    }
  }
  template <int kCount>
  FDL_BOTH static void store(Dtype dtype, std::byte* to, const Wide (&values)[kCount]) {
    switch (dtype) {
      case Dtype::float32:
        return store_real<Dtype::float32>(to, values);
      case Dtype::float16:
        return store_real<Dtype::float16>(to, values);
      case Dtype::bfloat16:
        return store_real<Dtype::bfloat16>(to, values);
      case Dtype::float8_e4m3:
        return store_real<Dtype::float8_e4m3>(to, values);
      case Dtype::float8_e5m2:
        return store_real<Dtype::float8_e5m2>(to, values);
      default:
        if constexpr (sizeof(Wide) == 8) store_real<Dtype::float64>(to, values);
    }
  }
  template <int kCount>
  FDL_BOTH static void change(Dtype from_dtype, Dtype to_dtype, const std::byte* from, std::byte* to,
                              const Scaling& scaling) {
    Wide values[kCount] = {};
    // Missing tensors contribute zeros, whatever the factor.
    if (from != nullptr) {
      load(from_dtype, from, values);
      scale(values, scaling.in<Wide>());
    }
    store(to_dtype, to, values);
  }

 private:
  template <int kCount>
  FDL_BOTH static void scale(Wide (&values)[kCount], const RealScale<Wide>& scale) {
    if constexpr (kDivides) {
      FDL_UNROLL
      for (int i = 0; i < kCount; ++i) values[i] = quotient(values[i], scale.divisor, scale.factor);
    } else if (scale.factor != Wide{1}) {
      FDL_UNROLL
      for (int i = 0; i < kCount; ++i) values[i] *= scale.factor;
    }
  }
};
// Divisions have kernels of their own, because their code makes those that multiply slower by a tenth.
using MultiplyReals = CastReals<float, false>;
using MultiplyFloat64 = CastReals<double, false>;
using DivideReals = CastReals<float, true>;
using DivideFloat64 = CastReals<double, true>;

// Multiplies integers by a factor. Both sides have the same type.
struct ScaleIntegers {
  template <class T, int kCount>
  FDL_BOTH static void scale(const std::byte* from, std::byte* to, const IntegerScale& scale) {
    // Exact products of many elements at once need more registers than a thread has.
    constexpr int kAtOnce = sizeof(T) == 8 && kCount > 4 ? 4 : kCount;
    FDL_UNROLL_NOT
    for (int first = 0; first < kCount; first += kAtOnce) {
      const std::size_t offset = first * sizeof(T);
      Elements<T, kAtOnce> before, after;
      if (from != nullptr) before.load(from + offset);
      FDL_UNROLL
      for (int i = 0; i < kAtOnce; ++i) after.put(i, scaled_integer<T>(before.get(i), scale));
      after.store(to + offset);
    }
  }
  template <int kCount>
  FDL_BOTH static void change(Dtype dtype, Dtype, const std::byte* from, std::byte* to, const Scaling& scaling) {
    switch (dtype) {
      case Dtype::uint8:
        return scale<uint8_t, kCount>(from, to, scaling.integer);
      case Dtype::int8:
        return scale<int8_t, kCount>(from, to, scaling.integer);
      case Dtype::uint16:
        return scale<uint16_t, kCount>(from, to, scaling.integer);
      case Dtype::int16:
        return scale<int16_t, kCount>(from, to, scaling.integer);
      case Dtype::uint32:
        return scale<uint32_t, kCount>(from, to, scaling.integer);
      case Dtype::int32:
        return scale<int32_t, kCount>(from, to, scaling.integer);
      case Dtype::uint64:
        return scale<uint64_t, kCount>(from, to, scaling.integer);
      default:
        return scale<int64_t, kCount>(from, to, scaling.integer);
    }
  }
};

// Elements before the first whole vector of a conversion.
FDL_BOTH uint32_t change_head(const PackTable& table, const Sides& sides) {
  const auto tensor_size = static_cast<unsigned>(size_of(table.tensors));
  const auto packed_size = static_cast<unsigned>(size_of(table.in_packed));
  return head_of(reinterpret_cast<uintptr_t>(sides.from), table.unpacks ? packed_size : tensor_size,
                 reinterpret_cast<uintptr_t>(sides.to), table.unpacks ? tensor_size : packed_size, kVectorElements);
}

// The body of the converting kernels: the share of one thread. `Change` is CastReals or ScaleIntegers.
template <class Change>
FDL_BOTH void change_tile(const PackTable& table, uint32_t block, unsigned thread) {
  const Dtype from_dtype = table.unpacks ? table.in_packed : table.tensors;
  const Dtype to_dtype = table.unpacks ? table.tensors : table.in_packed;
  const auto from_size = static_cast<unsigned>(size_of(from_dtype));
  const auto to_size = static_cast<unsigned>(size_of(to_dtype));
  const uint32_t segment = segment_of(table, block);
  const Sides sides = sides_of(table, segment, static_cast<unsigned>(size_of(table.in_packed)));
  const uint32_t head = change_head(table, sides);
  const Tile tile =
      tile_of(block - table.first_tile[segment], table.count[segment], head, table.tile_elements, kVectorElements);
  const auto source = [&](uint32_t i) {
    return sides.from == nullptr ? nullptr : sides.from + static_cast<std::size_t>(i) * from_size;
  };
  const auto target = [&](uint32_t i) { return sides.to + static_cast<std::size_t>(i) * to_size; };
  for (uint32_t i = tile.body_begin + thread * kVectorElements; i < tile.tail_begin; i += kThreads * kVectorElements) {
    Change::template change<kVectorElements>(from_dtype, to_dtype, source(i), target(i), table.scaling);
  }
  // The head and the tail are one sequence of elements, so that this code exists once.
  const uint32_t head_elements = tile.body_begin - tile.head_begin;
  const uint32_t singles = head_elements + tile.end - tile.tail_begin;
  for (uint32_t k = thread; k < singles; k += kThreads) {
    const uint32_t i = k < head_elements ? tile.head_begin + k : tile.tail_begin + (k - head_elements);
    Change::template change<1>(from_dtype, to_dtype, source(i), target(i), table.scaling);
  }
}

// The number of tiles of a segment, which depends on its alignment.
FDL_BOTH uint32_t tiles_of_segment(const PackTable& table, uint32_t segment, bool is_copy) {
  const Sides sides = sides_of(table, segment, is_copy ? 1 : static_cast<unsigned>(size_of(table.in_packed)));
  const auto from = reinterpret_cast<uintptr_t>(sides.from);
  const auto to = reinterpret_cast<uintptr_t>(sides.to);
  const uint32_t head = is_copy ? copy_head(from, to) : change_head(table, sides);
  return tiles_of(table.count[segment], head, table.tile_elements);
}

}  // namespace fdl::cuda
