// NcclSteps appends steps to a plan, hands out scratch, and computes the places of parts in vectors.
#pragma once

#include <numeric>
#include <span>
#include <vector>

#include "transports/nccl/nccl_plan.h"

namespace fdl {

class NcclSteps {
 protected:
  using Kind = NcclStep::Kind;
  using Counts = std::span<const std::size_t>;

  bool at_root() const { return static_cast<int>(rank_) == spec_.root; }
  // Counts are in elements of the collective's type; this gives the bytes.
  std::size_t bytes(std::size_t count) const { return count * element_; }
  // Elements of the parts of all lower ranks: where the part of `rank` begins.
  static std::size_t before(Counts counts, std::size_t rank) {
    return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank), std::size_t{0});
  }
  std::size_t before(std::size_t rank) const { return before(spec_.counts, rank); }
  std::size_t total() const { return before(size_); }
  // Whether all parts have the same size, as NCCL's single calls require.
  static bool even(Counts counts) {
    for (const std::size_t count : counts) {
      if (count != counts[0]) return false;
    }
    return true;
  }

  // Takes `requested` bytes of scratch. While there is no scratch, only the size is counted and the result is null.
  std::byte* take(std::size_t requested) {
    std::byte* taken = scratch_.data() == nullptr ? nullptr : scratch_.data() + used_;
    used_ += (requested + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }

  // ---- Steps. Counts of steps that only move bytes are in bytes. ----
  NcclStep& add(Kind kind, const std::byte* source, std::byte* target, std::size_t count) {
    steps_.push_back({.kind = kind, .source = source, .target = target, .count = count});
    steps_.back().dtype = spec_.dtype;
    steps_.back().fold_op = kind == Kind::fold ? spec_.reduction.op : Op::sum;
    return steps_.back();
  }
  // Puts all steps from `first` on into one NCCL group.
  void group_from(std::size_t first) {
    for (std::size_t i = first + 1; i < steps_.size(); ++i) steps_[i].grouped = true;
  }
  void copy(const std::byte* source, std::byte* target, std::size_t count) {
    if (source != target && count > 0) add(Kind::copy, source, target, bytes(count));
  }
  // Copies within one vector, where source and target may overlap.
  void move(const std::byte* source, std::byte* target, std::size_t count) {
    if (source > target && target + bytes(count) > source) {
      std::byte* between = take(bytes(count));
      copy(source, between, count);
      source = between;
    }
    copy(source, target, count);
  }
  void scale(const std::byte* source, std::byte* target, std::size_t count, double factor) {
    if (count > 0) add(Kind::scale, source, target, count).factor = factor;
  }
  void send(const std::byte* source, std::size_t count, std::size_t to) {
    if (count > 0) add(Kind::send, source, nullptr, bytes(count)).peer = static_cast<int>(to);
  }
  void recv(std::byte* target, std::size_t count, std::size_t from) {
    if (count > 0) add(Kind::recv, nullptr, target, bytes(count)).peer = static_cast<int>(from);
  }

  NcclSteps(const CollectiveSpec& spec, Buffers buffers, const NcclPlace& place, Bytes scratch,
            std::vector<NcclStep>& steps)
      : spec_(spec),
        input_(static_cast<const std::byte*>(buffers.input)),
        output_(static_cast<std::byte*>(buffers.output)),
        rank_(static_cast<std::size_t>(place.rank)),
        size_(static_cast<std::size_t>(place.size)),
        alltoall_(place.alltoall),
        element_(size_of(spec.dtype)),
        scratch_(scratch),
        steps_(steps) {}

  const CollectiveSpec& spec_;
  const std::byte* input_;
  std::byte* output_;
  const std::size_t rank_;
  const std::size_t size_;
  const bool alltoall_;
  const std::size_t element_;
  const Bytes scratch_;
  // Bytes of scratch taken so far.
  std::size_t used_ = 0;
  std::vector<NcclStep>& steps_;

 private:
  // The alignment of device allocations.
  static constexpr std::size_t kAlignment = 256;
};

}  // namespace fdl
