// One-shot math sums a small vector of each device of a host in one kernel. It is pure but for the flags: the same
// bodies run on a device and, in tests, on the CPU.
//
//   write    each rank copies its vector into its own shared block, where all ranks can read it
//   signal   block b of the kernel sets its flag in the shared block of each rank
//   wait     block b waits for the flags of the blocks b of all ranks
//   fold     each rank folds the vectors of all ranks, in the order of the ranks: all get the same bits
//
// Block b of each rank writes and folds the same elements, so that only the blocks of one number wait for each other.
// The number of a sum is counted in the shared block, so that a captured kernel may run many times. Even and odd sums
// have places of their own: a rank that writes sum n + 2 has seen flags of sum n + 1 from all ranks, whose kernels of
// sum n had ended by then.
#pragma once

#include "cuda/kernels/reduce_math.h"

#ifndef __CUDACC__
#include <atomic>
#include <thread>
#endif

namespace fdl::cuda {

inline constexpr unsigned kOneShotRanks = 16;
inline constexpr unsigned kOneShotBlocks = 32;  // few enough to run at once on any device, because they wait

// The beginning of a shared block; all zeros at first. The two places for vectors follow at kOneShotHeader.
struct OneShotHeader {
  uint32_t sums;                                  // that this rank has completed
  uint32_t ended;                                 // blocks of the sum that runs
  uint32_t flags[kOneShotBlocks][kOneShotRanks];  // the last sum for which this block of that rank has written
};
inline constexpr std::size_t kOneShotHeader = 4096;
static_assert(sizeof(OneShotHeader) <= kOneShotHeader);

// The parameters of a one-shot kernel.
struct OneShotTable {
  const std::byte* input;
  std::byte* output;  // may be the input
  uint64_t count;
  Scaling scaling;
  uint64_t place_bytes;  // of each of the two places; a multiple of 16
  const uint32_t* stop;  // in memory of the host: not 0 ends all waits
  uint32_t rank;
  uint32_t ranks;
  uint32_t blocks;
  Op op;
  std::byte* shared[kOneShotRanks];  // by rank
};

// ---- Flags ----

FDL_BOTH void release_flag(uint32_t* flag, uint32_t value) {
#ifdef __CUDA_ARCH__
  __threadfence_system();
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#elif !defined(__CUDACC__)
  std::atomic_ref<uint32_t>(*flag).store(value, std::memory_order_release);
#endif
}

FDL_BOTH uint32_t acquire_flag(const uint32_t* flag) {
  uint32_t value = 0;
#ifdef __CUDA_ARCH__
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
#elif !defined(__CUDACC__)
  value = std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(flag)).load(std::memory_order_acquire);
  std::this_thread::yield();
#endif
  return value;
}

// Returns the value before.
FDL_BOTH uint32_t add_one(uint32_t* counter) {
#ifdef __CUDA_ARCH__
  return atomicAdd(counter, 1);
#elif !defined(__CUDACC__)
  return std::atomic_ref<uint32_t>(*counter).fetch_add(1);
#else
  return 0;
#endif
}

FDL_BOTH OneShotHeader& header_of(const OneShotTable& table, uint32_t rank) {
  return *reinterpret_cast<OneShotHeader*>(table.shared[rank]);
}

// The number of the sum that this kernel computes.
FDL_BOTH uint32_t one_shot_number(const OneShotTable& table) { return header_of(table, table.rank).sums + 1; }

FDL_BOTH std::byte* one_shot_place(const OneShotTable& table, uint32_t rank, uint32_t number) {
  return table.shared[rank] + kOneShotHeader + (number & 1) * table.place_bytes;
}

// One thread for each rank calls it, when all threads of the block have written.
FDL_BOTH void one_shot_signal(const OneShotTable& table, uint32_t number, uint32_t block, uint32_t rank) {
  release_flag(&header_of(table, rank).flags[block][table.rank], number);
}

// One thread for each rank calls it. Returns whether the vector of that rank is there; false: the wait was ended.
// A rank may be one sum ahead, so its flag may be larger.
FDL_BOTH bool one_shot_wait(const OneShotTable& table, uint32_t number, uint32_t block, uint32_t rank) {
#ifdef __CUDA_ARCH__
  constexpr uint32_t kAsksForStop = 1024;  // the host's memory is far away
#else
  constexpr uint32_t kAsksForStop = 16;
#endif
  const uint32_t* const flag = &header_of(table, table.rank).flags[block][rank];
  for (uint32_t spins = 1;; ++spins) {
    if (static_cast<int32_t>(acquire_flag(flag) - number) >= 0) return true;
    if (spins % kAsksForStop == 0 && acquire_flag(table.stop) != 0) return false;
  }
}

// One thread of each block calls it at the end of the block.
FDL_BOTH void one_shot_end(const OneShotTable& table, uint32_t number) {
  OneShotHeader& own = header_of(table, table.rank);
  if (add_one(&own.ended) + 1 < table.blocks) return;
  own.ended = 0;
  own.sums = number;
}

// ---- Vectors ----
// Places are aligned to 16 bytes, and hold whole vectors. The tensors may begin anywhere, and are then moved by
// elements.

template <Dtype kDtype>
struct OneShotVector {
  using Element = ElementOf<kDtype>;
  using Memory = typename Element::Memory;
  static constexpr int kCount = 16 / sizeof(Memory);
  using Whole = Elements<Memory, kCount>;
  using Single = Elements<Memory, 1>;

  FDL_BOTH static bool is_whole(const OneShotTable& table, const std::byte* tensor, uint64_t vector) {
    return (vector + 1) * kCount <= table.count && (reinterpret_cast<uintptr_t>(tensor) & 15) == 0;
  }
  FDL_BOTH static int count_of(const OneShotTable& table, uint64_t vector) {
    const uint64_t left = table.count - vector * kCount;
    return left < kCount ? static_cast<int>(left) : kCount;
  }

  FDL_BOTH static void write(const OneShotTable& table, std::byte* place, uint64_t vector) {
    Whole whole;
    if (is_whole(table, table.input, vector)) {
      whole.load(table.input + vector * 16);
    } else {
      const int count = count_of(table, vector);
      FDL_UNROLL
      for (int i = 0; i < kCount; ++i) {
        Single single;
        if (i < count) single.load(table.input + vector * 16 + i * sizeof(Memory));
        whole.put(i, single.get(0));
      }
    }
    whole.store(place + vector * 16);
  }

  FDL_BOTH static void fold_vector(const OneShotTable& table, uint32_t number, uint64_t vector) {
    typename Element::Value folded[kCount], next[kCount];
    Whole whole;
    whole.load(one_shot_place(table, 0, number) + vector * 16);
    FDL_UNROLL
    for (int i = 0; i < kCount; ++i) folded[i] = Element::widen(whole.get(i));
    FDL_UNROLL_NOT
    for (uint32_t rank = 1; rank < table.ranks; ++rank) {
      whole.load(one_shot_place(table, rank, number) + vector * 16);
      FDL_UNROLL
      for (int i = 0; i < kCount; ++i) next[i] = Element::widen(whole.get(i));
      fold(table.op, folded, next);
    }
    Whole result;
    FDL_UNROLL
    for (int i = 0; i < kCount; ++i) result.put(i, Element::finish(folded[i], table.scaling));
    if (is_whole(table, table.output, vector)) return result.store(table.output + vector * 16);
    const int count = count_of(table, vector);
    FDL_UNROLL
    for (int i = 0; i < kCount; ++i) {
      Single single;
      single.put(0, result.get(i));
      if (i < count) single.store(table.output + vector * 16 + i * sizeof(Memory));
    }
  }

  FDL_BOTH static uint64_t vectors(const OneShotTable& table) { return (table.count + kCount - 1) / kCount; }
};

// The shares of one thread.
template <Dtype kDtype>
FDL_BOTH void one_shot_write(const OneShotTable& table, uint32_t number, uint32_t block, unsigned thread) {
  using Vector = OneShotVector<kDtype>;
  std::byte* const place = one_shot_place(table, table.rank, number);
  const uint64_t vectors = Vector::vectors(table);
  for (uint64_t i = block * kThreads + thread; i < vectors; i += table.blocks * kThreads) {
    Vector::write(table, place, i);
  }
}
template <Dtype kDtype>
FDL_BOTH void one_shot_fold(const OneShotTable& table, uint32_t number, uint32_t block, unsigned thread) {
  using Vector = OneShotVector<kDtype>;
  const uint64_t vectors = Vector::vectors(table);
  for (uint64_t i = block * kThreads + thread; i < vectors; i += table.blocks * kThreads) {
    Vector::fold_vector(table, number, i);
  }
}

}  // namespace fdl::cuda
