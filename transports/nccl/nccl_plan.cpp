// The planner has one function for each collective, and two for each reduction.
#include "transports/nccl/nccl_plan.h"

#include <optional>
#include <utility>

#include "transports/nccl/nccl_reduction.h"
#include "transports/nccl/nccl_steps.h"

namespace fdl {
namespace {

// Up to this many bytes from all ranks together, every rank folds the whole vector: one exchange instead of two.
constexpr std::size_t kFoldEverywhereBytes = 256 * 1024;

bool folds_everywhere(const CollectiveSpec& spec, int size) {
  return spec.count * size_of(spec.dtype) * static_cast<std::size_t>(size) <= kFoldEverywhereBytes;
}

// Writes the steps of one collective for this rank. All ranks choose the same path from the same facts.
class Planner : NcclSteps {
 public:
  Planner(const CollectiveSpec& spec, Buffers buffers, const NcclPlace& place, Bytes scratch,
          std::vector<NcclStep>& steps)
      : NcclSteps(spec, buffers, place, scratch, steps),
        reduction_(nccl_reduction(spec.dtype, spec.reduction.op, spec.deterministic)),
        // Owners fold with the CPU's rounding, so they scale before and after.
        scaling_(reduction_ ? nccl_scaling(spec.dtype, spec.reduction.op, spec.prescale, spec.postscale)
                            : NcclScaling{spec.prescale, 1, spec.postscale}) {
    if (!reduction_ || !is_integer_average(spec.dtype, spec.reduction.op, spec.postscale, place.size)) return;
    reduction_->op = nccl::RedOp::average;
    scaling_.after = 1;
  }

  std::size_t plan() {
    switch (spec_.collective) {
      case Collective::allreduce:
        reduction_ ? allreduce() : allreduce_by_owners();
        break;
      case Collective::reduce:
        reduction_ ? reduce() : reduce_by_owners();
        break;
      case Collective::reduce_scatter:
        reduction_ ? reduce_scatter() : reduce_scatter_by_owners();
        break;
      case Collective::broadcast:
        broadcast();
        break;
      case Collective::allgather:
        allgather(own_input_of_gather(), output_, spec_.counts);
        break;
      case Collective::alltoall:
        alltoall();
        break;
      case Collective::gather:
        gather(own_input_of_gather(), output_, spec_.counts);
        break;
      case Collective::scatter:
        scatter();
        break;
      case Collective::barrier:
        barrier();
        break;
    }
    return used_;
  }

 private:
  // ---- Reductions by NCCL ----
  // Adds a reduction by NCCL, including the factor that it applies inside.
  NcclStep& reduce_by_nccl(Kind kind, const std::byte* source, std::byte* target, std::size_t count) {
    NcclStep& step = add(kind, source, target, count);
    step.type = reduction_->type;
    step.op = reduction_->op;
    step.factor = scaling_.inside;
    return step;
  }
  // Applies the factor that comes after the reduction.
  void finish(std::byte* result, std::size_t count) {
    if (scaling_.after != 1) scale(result, result, count, scaling_.after);
  }
  // The input, multiplied by the factor that comes before the reduction if there is one. The product is written to
  // `space`, or to scratch if that is null.
  const std::byte* prepared(std::size_t count, std::byte* space) {
    if (scaling_.before == 1) return input_;
    std::byte* target = space != nullptr ? space : take(bytes(count));
    scale(input_, target, count, scaling_.before);
    return target;
  }

  void allreduce() {
    if (spec_.count == 0) return;
    const std::byte* source = prepared(spec_.count, output_);
    reduce_by_nccl(Kind::all_reduce, source, output_, spec_.count);
    finish(output_, spec_.count);
  }

  void reduce() {
    if (spec_.count == 0) return;
    const std::byte* source = prepared(spec_.count, at_root() ? output_ : nullptr);
    reduce_by_nccl(Kind::reduce, source, at_root() ? output_ : nullptr, spec_.count).peer = spec_.root;
    if (at_root()) finish(output_, spec_.count);
  }

  void reduce_scatter() {
    const std::size_t own = before(rank_);
    const std::byte* source = prepared(total(), nullptr);
    if (source == output_ &&
        own != 0) {  // the result goes to the input's start; NCCL's in-place form needs the own block
      std::byte* copied = take(bytes(total()));
      copy(source, copied, total());
      source = copied;
    }
    if (total() == 0) return;
    // NCCL's reduce_scatter requires equal parts; uneven ones are one reduction to each rank.
    if (even(spec_.counts)) {
      reduce_by_nccl(Kind::reduce_scatter, source, output_, spec_.counts[0]);
    } else {
      const std::size_t first = steps_.size();
      for (std::size_t r = 0; r < size_; ++r) {
        if (spec_.counts[r] == 0) continue;
        reduce_by_nccl(Kind::reduce, source + bytes(before(r)), r == rank_ ? output_ : nullptr, spec_.counts[r]).peer =
            static_cast<int>(r);
      }
      group_from(first);
    }
    finish(output_, spec_.counts[rank_]);
  }

  // ---- Reductions by owners ----
  // Sends each other rank its part and receives this rank's part from all. Returns the received parts, one after the
  // other by rank, each as long as this rank's part. The entry of this rank is a gap.
  std::byte* exchange(const std::byte* source, Counts parts) {
    const std::size_t own = bytes(parts[rank_]);
    std::byte* blocks = take(own * size_);
    const std::size_t first = steps_.size();
    for (std::size_t r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      send(source + bytes(before(parts, r)), parts[r], r);
      recv(blocks + own * r, parts[rank_], r);
    }
    group_from(first);
    return blocks;
  }

  // Adds the fold of this rank's own part and of the received blocks.
  void fold(const std::byte* own, const std::byte* blocks, std::byte* target, std::size_t count) {
    if (count == 0) return;
    NcclStep& step = add(Kind::fold, own, target, count);
    step.blocks = blocks;
    step.stride = bytes(count);
    step.factor = scaling_.after;
  }

  // Divides the vector into parts that are as even as whole elements allow.
  std::vector<std::size_t> parts_of(std::size_t count) const {
    std::vector<std::size_t> parts(size_);
    for (std::size_t r = 0; r < size_; ++r) parts[r] = count * (r + 1) / size_ - count * r / size_;
    return parts;
  }

  void allreduce_by_owners() {
    if (spec_.count == 0) return;
    const std::byte* source = prepared(spec_.count, output_);
    // Small vectors: every rank receives all inputs and folds them, without a second exchange.
    if (folds_everywhere(spec_, static_cast<int>(size_))) {
      std::byte* blocks = take(bytes(spec_.count) * size_);
      add(Kind::all_gather, source, blocks, bytes(spec_.count));
      fold(source, blocks, output_, spec_.count);
      return;
    }
    const auto parts = parts_of(spec_.count);
    const std::byte* blocks = exchange(source, parts);
    std::byte* own = output_ + bytes(before(parts, rank_));
    fold(source + bytes(before(parts, rank_)), blocks, own, parts[rank_]);
    allgather(own, output_, parts);
  }

  void reduce_by_owners() {
    if (spec_.count == 0) return;
    const std::byte* source = prepared(spec_.count, at_root() ? output_ : nullptr);
    const auto parts = parts_of(spec_.count);
    const std::byte* blocks = exchange(source, parts);
    std::byte* own = at_root() ? output_ + bytes(before(parts, rank_)) : take(bytes(parts[rank_]));
    fold(source + bytes(before(parts, rank_)), blocks, own, parts[rank_]);
    gather(own, output_, parts);
  }

  void reduce_scatter_by_owners() {
    const std::byte* source = prepared(total(), nullptr);
    std::byte* blocks = exchange(source, spec_.counts);
    const std::byte* own = source + bytes(before(rank_));
    if (source == output_) {  // the result at the input's start may overlap the own part: fold from the gap
      std::byte* gap = blocks + bytes(spec_.counts[rank_]) * rank_;
      copy(own, gap, spec_.counts[rank_]);
      own = gap;
    }
    fold(own, blocks, output_, spec_.counts[rank_]);
  }

  // ---- Collectives that move bytes ----
  void broadcast() {
    if (spec_.count == 0) return;
    add(Kind::broadcast, at_root() ? input_ : output_, output_, bytes(spec_.count)).peer = spec_.root;
  }

  // In place, the own part is already at its place in the output.
  const std::byte* own_input_of_gather() const {
    const bool receives = spec_.collective == Collective::allgather || at_root();
    return receives && input_ == output_ ? output_ + bytes(before(rank_)) : input_;
  }

  void allgather(const std::byte* own, std::byte* target, Counts parts) {
    if (before(parts, size_) == 0) return;
    if (even(parts)) {
      add(Kind::all_gather, own, target, bytes(parts[0]));
      return;
    }
    // Uneven parts are one broadcast from each rank, in one group, which NCCL runs as a single allgather.
    const std::size_t first = steps_.size();
    for (std::size_t r = 0; r < size_; ++r) {
      std::byte* part = target + bytes(before(parts, r));
      if (parts[r] > 0) add(Kind::broadcast, r == rank_ ? own : part, part, bytes(parts[r])).peer = static_cast<int>(r);
    }
    group_from(first);
  }

  void gather(const std::byte* own, std::byte* target, Counts parts) {
    if (before(parts, size_) == 0) return;
    if (alltoall_ && even(parts)) {
      add(Kind::gather, own, at_root() ? target : nullptr, bytes(parts[0])).peer = spec_.root;
      return;
    }
    if (at_root()) copy(own, target + bytes(before(parts, rank_)), parts[rank_]);
    const std::size_t first = steps_.size();
    if (!at_root()) send(own, parts[rank_], static_cast<std::size_t>(spec_.root));
    for (std::size_t r = 0; at_root() && r < size_; ++r) {
      if (r != rank_) recv(target + bytes(before(parts, r)), parts[r], r);
    }
    group_from(first);
  }

  void scatter() {
    if (total() == 0) return;
    const std::size_t own = bytes(before(rank_));
    if (alltoall_ && even(spec_.counts)) {
      // In place, the root's part stays in its place during the call and is copied to the start of the buffer
      // afterwards.
      std::byte* target = at_root() && input_ == output_ ? output_ + own : output_;
      add(Kind::scatter, at_root() ? input_ : nullptr, target, bytes(spec_.counts[0])).peer = spec_.root;
      copy(target, output_, spec_.counts[rank_]);
      return;
    }
    const std::size_t first = steps_.size();
    if (!at_root()) recv(output_, spec_.counts[rank_], static_cast<std::size_t>(spec_.root));
    for (std::size_t r = 0; at_root() && r < size_; ++r) {
      if (r != rank_) send(input_ + bytes(before(r)), spec_.counts[r], r);
    }
    group_from(first);
    if (at_root()) move(input_ + own, output_, spec_.counts[rank_]);
  }

  // Equal counts are one NCCL call; other counts are sends and receives in one group.
  void alltoall() {
    const std::byte* source = input_;
    if (input_ == output_ &&
        total() > 0) {  // in place: arriving bytes must not overwrite bytes that are still to be sent
      std::byte* copied = take(bytes(total()));
      copy(input_, copied, total());
      source = copied;
    }
    // count promises equal counts on all ranks, which NCCL's single call requires.
    if (spec_.count != 0 && alltoall_) {
      add(Kind::all_to_all, source, output_, bytes(spec_.count));
      return;
    }
    const std::size_t first = steps_.size();
    for (std::size_t r = 0; r < size_; ++r) {
      send(source + bytes(before(r)), spec_.counts[r], r);
      recv(output_ + bytes(before(spec_.recv_counts, r)), spec_.recv_counts[r], r);
    }
    group_from(first);
  }

  // A sum of one byte ends on no rank before all have begun it.
  void barrier() {
    std::byte* byte = take(1);
    add(Kind::all_reduce, byte, byte, 1);
  }

  std::optional<NcclReduction> reduction_;
  NcclScaling scaling_;
};

}  // namespace

std::size_t plan_nccl(const CollectiveSpec& spec, Buffers buffers, const NcclPlace& place, Bytes scratch,
                      std::vector<NcclStep>& steps) {
  return Planner(spec, buffers, place, scratch, steps).plan();
}

// An alltoall is excluded: in place it needs a copy, which must not run before the calls of another plan. A gather and
// a scatter are sends and receives of single ranks, so a rank may have no call of theirs in the group.
bool is_one_group(const CollectiveSpec& spec, const NcclPlace& place) {
  switch (spec.collective) {
    case Collective::broadcast:
    case Collective::allgather:
    case Collective::gather:
    case Collective::scatter:
      return true;
    case Collective::allreduce:
      return nccl_reduction(spec.dtype, spec.reduction.op, spec.deterministic) || folds_everywhere(spec, place.size);
    case Collective::reduce:
    case Collective::reduce_scatter:
      return nccl_reduction(spec.dtype, spec.reduction.op, spec.deterministic).has_value();
    default:
      return false;
  }
}

void merge_plans(std::vector<NcclStep>& steps, std::span<const std::size_t> ends, std::vector<NcclStep>& buffer) {
  buffer.clear();
  const auto append = [&](auto matches) {
    std::size_t from = 0;
    for (const std::size_t end : ends) {
      bool called = false;  // whether the plan's NCCL calls have begun
      for (; from < end; ++from) {
        called |= steps[from].by_nccl();
        if (matches(steps[from], called)) buffer.push_back(steps[from]);
      }
    }
  };
  append([](const NcclStep& step, bool called) { return !step.by_nccl() && !called; });
  const std::size_t first = buffer.size();
  append([](const NcclStep& step, bool) { return step.by_nccl(); });
  for (std::size_t i = first; i < buffer.size(); ++i) buffer[i].grouped = i > first;
  append([](const NcclStep& step, bool called) { return !step.by_nccl() && called; });
  steps.swap(buffer);
}

}  // namespace fdl
