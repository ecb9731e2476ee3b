// CompressedCollectives is a state machine. Between two inner collectives it converts one piece of the vector a call.
#include "engine/host/compressed_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "data/reduce.h"
#include "engine/host/aliasing.h"
#include "engine/host/layout.h"

namespace fdl {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// What one call of progress() converts at most: 256 KiB of float32. Pieces begin with whole blocks.
constexpr std::size_t kPieceElements = std::size_t{1} << 16;
// The sums of so many elements stay in L1 while the ranks' blocks are added.
constexpr std::size_t kSumElements = 4096;
static_assert(kPieceElements % kSumElements == 0 && kSumElements % kBlockElements == 0);

// Bounds of what float32 adds to the errors. A correctly rounded operation is off by at most 2^-24 of its result.
// A factor that was rounded to float32 and a product with it: 2^-23 of the exact product, or so much more below 2^-126.
constexpr double kScaling = 0x1p-22;
constexpr double kSubnormal = 0x1p-149;
// n additions: n * 2^-24 of the sum of the magnitudes, times (1 + 2^-24)^n, which is below 2.
constexpr double kAddition = 0x1p-23;
// The bounds themselves are computed in float64, with fewer than 2^11 roundings for each.
constexpr double kBoundRounding = 1 + 0x1p-40;

}  // namespace

bool compresses(const CollectiveSpec& spec) {
  if (spec.compression == Compression::none || spec.dtype != Dtype::float32 || spec.device != nullptr) return false;
  if (spec.collective == Collective::allgather) return true;
  const bool reduces = spec.collective == Collective::allreduce || spec.collective == Collective::reduce_scatter;
  return reduces && (spec.reduction.op == Op::sum || spec.reduction.op == Op::average);
}

CompressedCollectives::CompressedCollectives(int rank, int size, Runner choose)
    : rank_(rank), size_(size), choose_(std::move(choose)) {}

// ---- Layout ----

std::size_t CompressedCollectives::bytes_of(std::size_t elements) const {
  return blocks_of(elements) * block_bytes(spec_.compression);
}

// A reduce-scatter gathers only the bounds.
std::size_t CompressedCollectives::gathered_bytes(const Chunk& chunk) const {
  return (spec_.collective == Collective::reduce_scatter ? 0 : bytes_of(chunk.count)) + sizeof bound_;
}

// The chunks of an allreduce are whole blocks, so that only the last one is padded.
void CompressedCollectives::lay_out() {
  const auto ranks = static_cast<std::size_t>(size_);
  const std::size_t blocks = blocks_of(spec_.count);
  chunks_.resize(ranks);
  Chunk next;
  for (std::size_t r = 0; r < ranks; ++r) {
    next.count = spec_.collective != Collective::allreduce
                     ? spec_.counts[r]
                     : std::min(even_share(blocks, ranks, r) * kBlockElements, spec_.count - next.first);
    chunks_[r] = next;
    next.first += next.count;
    next.sent_at += bytes_of(next.count);
    next.gathered_at += gathered_bytes(next);
  }
  if (spec_.collective != Collective::allgather) {
    sent_.at_least(next.sent_at);
    received_.at_least(ranks * bytes_of(own().count));
  }
  gathered_.at_least(next.gathered_at);
  sums_.resize(kSumElements);
}

// ---- Stages ----

void CompressedCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  FDL_CHECK(completion_ == nullptr);
  if (!ended_.ok()) return completion.finish(ended_);
  if (!compresses(spec)) {
    return completion.finish(
        Status(Code::unsupported, fmt::format("{} of {} cannot be compressed to {}", fdl::name_of(spec.collective),
                                              fdl::name_of(spec.dtype), fdl::name_of(spec.compression))));
  }
  spec_ = spec;
  input_ = reinterpret_cast<const float*>(aliasing_of(spec, buffers, rank_).input);
  output_ = static_cast<float*>(buffers.output);
  completion_ = &completion;
  bound_ = 0;
  at_chunk_ = at_ = 0;
  if (size_ == 1) {
    start_alone();
  } else {
    lay_out();
    stage_ = Stage::quantise;
    if (spec_.collective == Collective::allgather) at_chunk_ = static_cast<std::size_t>(rank_);
  }
  progress();
}

bool CompressedCollectives::progress() {
  if (inner_ != nullptr && !inner_outcome_.done) {
    const bool moved = inner_->progress();
    if (!inner_outcome_.done) return moved;
  }
  switch (stage_) {
    case Stage::idle:
      return false;
    case Stage::alone:
    case Stage::exchange:
    case Stage::gather:
      after_inner();
      return true;
    case Stage::quantise:
      if (!quantise_piece()) spec_.collective == Collective::allgather ? start_gather() : start_exchange();
      return true;
    case Stage::fold:
      if (!fold_piece()) start_gather();
      return true;
    case Stage::spread:
      if (!spread_piece()) report_bound();
      return true;
  }
  return false;
}

void CompressedCollectives::after_inner() {
  const Stage done = std::exchange(stage_, Stage::fold);
  inner_ = nullptr;
  at_chunk_ = at_ = 0;
  if (!inner_outcome_.status.ok()) return conclude(inner_outcome_.status);
  if (done == Stage::exchange) return;
  if (done == Stage::alone) bound_ = bound_alone();
  if (done == Stage::alone || spec_.collective == Collective::reduce_scatter) return report_bound();
  stage_ = Stage::spread;
}

void CompressedCollectives::start_inner(Stage stage, const CollectiveSpec& spec, Buffers buffers) {
  stage_ = stage;
  inner_spec_ = spec;
  inner_outcome_ = {};
  inner_ = &choose_(inner_spec_);
  inner_->start(inner_spec_, buffers, inner_outcome_);
}

// A single rank sends nothing, so only factors make its result inexact.
void CompressedCollectives::start_alone() {
  CollectiveSpec plain = spec_;
  plain.compression = Compression::none;
  start_inner(Stage::alone, plain, {input_, output_});
}

double CompressedCollectives::bound_alone() const {
  const bool gathers = spec_.collective == Collective::allgather;
  if (gathers || (spec_.prescale == 1 && spec_.postscale == 1)) return 0;
  const std::size_t count = spec_.collective == Collective::allreduce ? spec_.count : spec_.counts[0];
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(output_[i])) return kInfinite;
    largest = std::max<double>(largest, std::abs(output_[i]));
  }
  return 2 * kScaling * largest + kSubnormal * (1 + std::abs(spec_.postscale));
}

void CompressedCollectives::start_exchange() {
  const auto ranks = static_cast<std::size_t>(size_);
  recv_counts_.assign(ranks, bytes_of(own().count));
  counts_.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) counts_[r] = bytes_of(chunks_[r].count);
  const bool even = std::equal(counts_.begin() + 1, counts_.end(), counts_.begin());
  start_inner(Stage::exchange,
              {.collective = Collective::alltoall,
               .dtype = Dtype::uint8,
               .count = even ? counts_[0] : 0,
               .counts = counts_,
               .recv_counts = recv_counts_,
               .part_of = &spec_},
              {sent_.at_least(0), received_.at_least(0)});
}

void CompressedCollectives::start_gather() {
  const auto ranks = static_cast<std::size_t>(size_);
  counts_.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) counts_[r] = gathered_bytes(chunks_[r]);
  std::byte* const place = gathered_.at_least(0) + own().gathered_at;
  std::memcpy(place + gathered_bytes(own()) - sizeof bound_, &bound_, sizeof bound_);
  start_inner(Stage::gather,
              {.collective = Collective::allgather, .dtype = Dtype::uint8, .counts = counts_, .part_of = &spec_},
              {place, gathered_.at_least(0)});
}

void CompressedCollectives::report_bound() {
  double bound = bound_;
  if (size_ > 1) {
    for (const Chunk& chunk : chunks_) {
      double of_owner;
      const std::byte* end = gathered_.at_least(0) + chunk.gathered_at + gathered_bytes(chunk);
      std::memcpy(&of_owner, end - sizeof of_owner, sizeof of_owner);
      bound = std::max(bound, of_owner);
    }
  }
  if (spec_.error_bound != nullptr) *spec_.error_bound = bound;
  conclude({});
}

void CompressedCollectives::conclude(Status outcome) {
  stage_ = Stage::idle;
  inner_ = nullptr;
  Completion* const completion = std::exchange(completion_, nullptr);
  if (completion != nullptr) completion->finish(std::move(outcome));
}

void CompressedCollectives::interrupt(const Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  conclude(why);
}

std::string CompressedCollectives::phase() const {
  static constexpr std::string_view kStages[] = {"idle", "alone", "quantise", "exchange", "fold", "gather", "spread"};
  std::string text = fmt::format("{} compressed to {}, {}", fdl::name_of(spec_.collective),
                                 fdl::name_of(spec_.compression), kStages[static_cast<std::size_t>(stage_)]);
  if (inner_ != nullptr) text += ": " + inner_->phase();
  return text;
}

// ---- Pieces ----

// The elements of the next piece of a chunk of `count` elements; `at_` moves behind them.
std::size_t CompressedCollectives::take_piece(std::size_t count) {
  const std::size_t piece = std::min(kPieceElements, count - at_);
  at_ += piece;
  return piece;
}

// Each of these does one piece and returns whether there may be more.
bool CompressedCollectives::quantise_piece() {
  const bool own_only = spec_.collective == Collective::allgather;
  if (at_chunk_ == chunks_.size() || (own_only && at_chunk_ != static_cast<std::size_t>(rank_))) return false;
  const Chunk& chunk = chunks_[at_chunk_];
  const std::size_t first = at_;
  if (const std::size_t count = take_piece(chunk.count); count > 0) {
    std::byte* const to =
        (own_only ? gathered_.at_least(0) + chunk.gathered_at : sent_.at_least(0) + chunk.sent_at) + bytes_of(first);
    const float* from = input_ + (own_only ? 0 : chunk.first) + first;
    const auto factor = static_cast<float>(own_only ? 1 : spec_.prescale);
    quantise(spec_.compression, to, from, count, factor);
    if (own_only) raise_bound(error_bound(spec_.compression, to, count));
  }
  if (at_ == chunk.count) {
    ++at_chunk_;
    at_ = 0;
  }
  return true;
}

bool CompressedCollectives::fold_piece() {
  const std::size_t begin = at_;
  const std::size_t end = begin + take_piece(own().count);
  for (std::size_t first = begin; first < end; first += kSumElements) fold(first, std::min(kSumElements, end - first));
  return at_ < own().count;
}

bool CompressedCollectives::spread_piece() {
  if (at_chunk_ == chunks_.size()) return false;
  const Chunk& chunk = chunks_[at_chunk_];
  const std::size_t first = at_;
  if (const std::size_t count = take_piece(chunk.count); count > 0) {
    dequantise(spec_.compression, output_ + chunk.first + first,
               gathered_.at_least(0) + chunk.gathered_at + bytes_of(first), count);
  }
  if (at_ == chunk.count) {
    ++at_chunk_;
    at_ = 0;
  }
  return true;
}

// Adds all ranks' blocks of a part of this rank's chunk, in rank order.
void CompressedCollectives::fold(std::size_t first, std::size_t count) {
  const bool scatters = spec_.collective == Collective::reduce_scatter;
  const std::size_t stride = bytes_of(own().count);
  const std::byte* const from = received_.at_least(0) + bytes_of(first);
  float* const sums = scatters ? output_ + first : sums_.data();
  dequantise(spec_.compression, sums, from, count);
  for (std::size_t r = 1; r < static_cast<std::size_t>(size_); ++r) {
    add_dequantised(spec_.compression, sums, from + r * stride, count);
  }
  if (scatters) {
    if (spec_.postscale != 1) scale(Dtype::float32, sums, sums, count, spec_.postscale);
    return bound_fold(first, count, nullptr);
  }
  std::byte* const to = gathered_.at_least(0) + own().gathered_at + bytes_of(first);
  quantise(spec_.compression, to, sums, count, static_cast<float>(spec_.postscale));
  bound_fold(first, count, to);
}

// `result`: the quantised sums, or null where they stay float32. docs/compression.md names the terms.
void CompressedCollectives::bound_fold(std::size_t first, std::size_t count, const std::byte* result) {
  const std::size_t block = block_bytes(spec_.compression);
  const std::size_t stride = bytes_of(own().count);
  const std::byte* from = received_.at_least(0) + bytes_of(first);
  const double postscale = std::abs(spec_.postscale);
  for (std::size_t i = 0; i < blocks_of(count); ++i, from += block) {
    BlockBound sum;
    for (std::size_t r = 0; r < static_cast<std::size_t>(size_); ++r) {
      const BlockBound one = bound_of_block(spec_.compression, from + r * stride);
      sum.error += one.error;
      sum.magnitude += one.magnitude;
    }
    double bound = sum.error + (size_ - 1) * kAddition * sum.magnitude;
    if (spec_.prescale != 1) bound += kScaling * sum.magnitude + size_ * kSubnormal;
    if (spec_.postscale != 1) bound = postscale * bound + kScaling * postscale * sum.magnitude + kSubnormal;
    if (result != nullptr) {
      bound += bound_of_block(spec_.compression, result + i * block).error;
    } else if (sum.magnitude * std::max(postscale, 1.0) > std::numeric_limits<float>::max()) {
      bound = kInfinite;  // the sum may have overflowed
    }
    raise_bound(bound);
  }
}

// A NaN comes from an infinite bound times a factor of zero.
void CompressedCollectives::raise_bound(double bound) {
  bound_ = std::isnan(bound) ? kInfinite : std::max(bound_, bound * kBoundRounding);
}

}  // namespace fdl
