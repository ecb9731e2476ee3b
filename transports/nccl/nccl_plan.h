// plan_nccl() turns one rank's part of one collective into a list of steps: calls of NCCL, and our own kernels around
// them. Pure.
//
// There are two ways to reduce; all ranks choose the same one:
//   by NCCL         sums and products of the types that it has, and minima and maxima of integers
//   by owners       everything else: ranks exchange parts by sends and receives, then each owner folds its part in rank
//                   order by Device::reduce, rounded once. The bits are those of the CPU's kernels, and the traffic is
//                   that of a ring.
// Owners reduce the types that NCCL lacks (16-bit integers, bool), 8-bit floats (NCCL rounds after every addition and
// needs new devices), minima and maxima of reals (NCCL ignores NaN), bitwise and logical operations, and everything
// that must be deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "contract/collectives.h"
#include "transports/nccl/nccl_abi.h"

namespace fdl {

struct NcclStep {
  enum class Kind : uint8_t {
    // On the stream, by the device.
    copy,   // target = source, `count` bytes
    scale,  // target = factor * source
    fold,   // target = factor * (part 0 op part 1 op ...): this rank's part is `source`, part r of another rank is
            // at blocks + r * stride
    // Calls of NCCL.
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    reduce_scatter,
    all_to_all,
    gather,
    scatter,
    send,
    recv,
  };
  Kind kind = Kind::copy;
  bool grouped = false;  // in one NCCL group with the step before it
  int peer = 0;          // of send and recv; the root of rooted calls
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::size_t count = 0;
  nccl::Type type = nccl::Type::uint8;  // element type of NCCL calls
  nccl::RedOp op = nccl::RedOp::sum;
  Dtype dtype = Dtype::uint8;  // element type of scale and fold
  Op fold_op = Op::sum;
  double factor = 1;  // of scale and fold; of a reduction by NCCL: multiplied into its inputs
  const std::byte* blocks = nullptr;
  std::size_t stride = 0;

  bool by_nccl() const { return kind > Kind::fold; }
};

// The planning rank: its place in the group and what the libraries of all ranks can do.
struct NcclPlace {
  int rank = 0;
  int size = 1;
  bool alltoall = false;  // whether NCCL has alltoall, gather and scatter as single calls
};

// Appends the steps to `steps` and returns the bytes of scratch that they use from the start of `scratch` on. If that
// is more than `scratch` has, the steps are invalid: plan again with enough scratch.
std::size_t plan_nccl(const CollectiveSpec& spec, Buffers buffers, const NcclPlace& place, Bytes scratch,
                      std::vector<NcclStep>& steps);

// Whether the plan of a collective has, on every rank, at most one group of collective calls, which other plans' calls
// can join.
bool is_one_group(const CollectiveSpec& spec, const NcclPlace& place);

// Merges several such plans into one. Plan i ends in `steps` at ends[i]. The result has the steps before the calls, all
// calls in one group, then the steps after the calls. `buffer` is used as working memory.
void merge_plans(std::vector<NcclStep>& steps, std::span<const std::size_t> ends, std::vector<NcclStep>& buffer);

}  // namespace fdl
