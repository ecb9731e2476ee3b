// NcclPlan: one rank's part of one collective as a list of steps: calls of NCCL, and our own kernels around them. Pure.
//
// Two ways to reduce, the same on all ranks:
//   NCCL's own      sums and products of the types that it has, and minima and maxima of integers
//   by owners       everything else: an exchange by sends and receives, then each owner folds its part in rank order by
//                   Device::reduce, rounded once; the bits of the CPU's kernels. As many bytes on the wire as a ring.
// By owners go the types that NCCL lacks (16-bit integers, bool), 8-bit floats (it rounds them after every addition and
// needs new devices), minima and maxima of reals (it passes over NaN), bitwise and logical operations, and all that
// must be deterministic.
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
    fold,   // target = factor * (part 0 op part 1 op ...); my own part is `source`, part r else lies at
            // blocks + r * stride
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
  bool joined = false;  // with the step before it: in one group
  int peer = 0;         // of send and recv; else the root
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::size_t count = 0;
  nccl::Type type = nccl::Type::uint8;  // of calls of NCCL
  nccl::RedOp op = nccl::RedOp::sum;
  Dtype dtype = Dtype::uint8;  // of scale and fold
  Op fold_op = Op::sum;
  double factor = 1;  // of a reduction by NCCL: multiplied into its inputs
  const std::byte* blocks = nullptr;
  std::size_t stride = 0;

  bool by_nccl() const { return kind > Kind::fold; }
};

// Who plans: where this rank stands, and what all ranks' libraries can do.
struct NcclPlace {
  int rank = 0;
  int size = 1;
  bool alltoall = false;  // alltoall, gather and scatter as calls
};

// Appends the steps to `steps` and returns how much scratch they need from the start of `scratch` on. Where that is
// more than there is, the steps are of no use: plan again with enough of it.
std::size_t plan_nccl(const CollectiveSpec& spec, Buffers buffers, const NcclPlace& place, Bytes scratch,
                      std::vector<NcclStep>& steps);

// Whether its plan has, on every rank, at most one group of collective calls, which others can join.
bool is_one_group(const CollectiveSpec& spec, const NcclPlace& place);

// The steps of several such plans, which end in `steps` at `ends`, as those of one: what comes before the calls, all
// calls in one group, what comes after.
void join_plans(std::vector<NcclStep>& steps, std::span<const std::size_t> ends, std::vector<NcclStep>& room);

}  // namespace fdl
