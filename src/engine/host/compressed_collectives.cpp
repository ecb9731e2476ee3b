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

// What one call of progress() converts at most: 256 KiB of float32, between two looks at the inner collective.
constexpr std::size_t kPieceElements = std::size_t{1} << 16;
// A part of a chunk that passes in one exchange and one gather: 1 MiB of float32.
constexpr std::size_t kSegmentElements = std::size_t{1} << 18;
// The sums of so many elements stay in L1 while the ranks' blocks are added.
constexpr std::size_t kSumElements = 4096;
static_assert(kSegmentElements % kPieceElements == 0 && kPieceElements % kSumElements == 0);
static_assert(kSumElements % kBlockElements == 0);

// Bounds of the errors of float32 arithmetic. A rounded operation is off by at most 2^-24 of its result.
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

// The bytes of all ranks' parts of earlier segments.
std::size_t CompressedCollectives::bytes_before(std::size_t segment) const {
  std::size_t bytes = 0;
  for (const Chunk& chunk : chunks_) bytes += bytes_of(std::min(chunk.count, segment * kSegmentElements));
  return bytes;
}

// The part of a rank's chunk in a segment; may be empty.
CompressedCollectives::Chunk CompressedCollectives::part_of(std::size_t rank, std::size_t segment) const {
  const Chunk& chunk = chunks_[rank];
  const std::size_t first = std::min(chunk.count, segment * kSegmentElements);
  return {chunk.first + first, std::min(chunk.count - first, kSegmentElements)};
}

// A reduce-scatter gathers only the bounds.
std::size_t CompressedCollectives::gathered_bytes(std::size_t rank, std::size_t segment) const {
  const std::size_t blocks = is(Collective::reduce_scatter) ? 0 : bytes_of(part_of(rank, segment).count);
  return blocks + (segment + 1 == segments_ ? sizeof bound_ : 0);
}

std::size_t CompressedCollectives::gathered_at(std::size_t rank, std::size_t segment) const {
  std::size_t bytes = is(Collective::reduce_scatter) ? 0 : bytes_before(segment);
  for (std::size_t r = 0; r < rank; ++r) bytes += gathered_bytes(r, segment);
  return bytes;
}

std::size_t CompressedCollectives::received_at(std::size_t segment) const {
  return ranks() * bytes_of(std::min(chunks_[me()].count, segment * kSegmentElements));
}

// The chunks of an allreduce are whole blocks, so that only the last one is padded.
void CompressedCollectives::lay_out() {
  const std::size_t blocks = blocks_of(spec_.count);
  chunks_.resize(ranks());
  std::size_t first = 0;
  std::size_t longest = 0;
  for (std::size_t r = 0; r < ranks(); ++r) {
    const std::size_t count = is(Collective::allreduce)
                                  ? std::min(even_share(blocks, ranks(), r) * kBlockElements, spec_.count - first)
                                  : spec_.counts[r];
    chunks_[r] = {first, count};
    first += count;
    longest = std::max(longest, count);
  }
  segments_ = std::max<std::size_t>(1, (longest + kSegmentElements - 1) / kSegmentElements);
  if (!is(Collective::allgather)) {
    sent_.at_least(bytes_before(segments_));
    received_.at_least(received_at(segments_));
  }
  gathered_.at_least(gathered_at(ranks() - 1, segments_ - 1) + gathered_bytes(ranks() - 1, segments_ - 1));
  sums_.resize(kSumElements);
}

// ---- The state machine ----

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
  exchanges_ = gathers_ = 0;
  quantised_ = folded_ = spread_ = {};
  if (size_ == 1) {
    // A single rank sends nothing, so only factors make its result inexact.
    CollectiveSpec plain = spec_;
    plain.compression = Compression::none;
    start_inner(Inner::alone, plain, {input_, output_});
  } else {
    lay_out();
  }
  progress();
}

// The inner collective goes first, because the other ranks wait for it.
bool CompressedCollectives::progress() {
  if (completion_ == nullptr) return false;
  bool moved = false;
  if (inner_ != nullptr) {
    if (!inner_outcome_.done) moved = inner_->progress();
    if (inner_outcome_.done) {
      end_inner();
      moved = true;
    }
  }
  if (completion_ == nullptr || size_ == 1) return moved;
  if (inner_ == nullptr && start_next()) moved = true;
  if (convert_piece()) moved = true;
  if (!is_complete()) return moved;
  report_bound();
  return true;
}

// The order of the inner collectives is the same on all ranks: exchanges are up to two ahead of the gathers.
bool CompressedCollectives::start_next() {
  const std::size_t all_exchanges = is(Collective::allgather) ? 0 : segments_;
  const std::size_t all_gathers = is(Collective::reduce_scatter) ? 1 : segments_;
  const bool exchanges = exchanges_ < all_exchanges && (exchanges_ < gathers_ + 2 || is(Collective::reduce_scatter));
  if (exchanges) {
    if (quantised_.segment <= exchanges_) return false;
    start_exchange(exchanges_++);
    return true;
  }
  if (gathers_ == all_gathers) return false;
  const std::size_t segment = is(Collective::reduce_scatter) ? segments_ - 1 : gathers_;
  const Conversion& ready = is(Collective::allgather) ? quantised_ : folded_;
  if (ready.segment <= segment) return false;
  ++gathers_;
  start_gather(segment);
  return true;
}

void CompressedCollectives::start_inner(Inner kind, const CollectiveSpec& spec, Buffers buffers) {
  kind_ = kind;
  inner_spec_ = spec;
  inner_outcome_ = {};
  inner_ = &choose_(inner_spec_);
  inner_->start(inner_spec_, buffers, inner_outcome_);
}

void CompressedCollectives::start_exchange(std::size_t segment) {
  recv_counts_.assign(ranks(), bytes_of(part_of(me(), segment).count));
  counts_.resize(ranks());
  for (std::size_t r = 0; r < ranks(); ++r) counts_[r] = bytes_of(part_of(r, segment).count);
  const bool even = std::equal(counts_.begin() + 1, counts_.end(), counts_.begin());
  start_inner(Inner::exchange,
              {.collective = Collective::alltoall,
               .dtype = Dtype::uint8,
               .count = even ? counts_[0] : 0,
               .counts = counts_,
               .recv_counts = recv_counts_,
               .part_of = &spec_},
              {sent_.at_least(0) + bytes_before(segment), received_.at_least(0) + received_at(segment)});
}

void CompressedCollectives::start_gather(std::size_t segment) {
  counts_.resize(ranks());
  for (std::size_t r = 0; r < ranks(); ++r) counts_[r] = gathered_bytes(r, segment);
  std::byte* const own = gathered_.at_least(0) + gathered_at(me(), segment);
  if (segment + 1 == segments_) std::memcpy(own + counts_[me()] - sizeof bound_, &bound_, sizeof bound_);
  start_inner(Inner::gather,
              {.collective = Collective::allgather, .dtype = Dtype::uint8, .counts = counts_, .part_of = &spec_},
              {own, gathered_.at_least(0) + gathered_at(0, segment)});
}

void CompressedCollectives::end_inner() {
  const Inner ended = std::exchange(kind_, Inner::none);
  inner_ = nullptr;
  if (!inner_outcome_.status.ok()) return conclude(inner_outcome_.status);
  if (ended != Inner::alone) return;
  bound_ = bound_alone();
  report_bound();
}

bool CompressedCollectives::is_complete() const {
  if (kind_ != Inner::none) return false;
  return is(Collective::reduce_scatter) ? gathers_ == 1 : spread_.segment == segments_;
}

double CompressedCollectives::bound_alone() const {
  if (is(Collective::allgather) || (spec_.prescale == 1 && spec_.postscale == 1)) return 0;
  const std::size_t count = is(Collective::allreduce) ? spec_.count : spec_.counts[0];
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(output_[i])) return kInfinite;
    largest = std::max<double>(largest, std::abs(output_[i]));
  }
  return 2 * kScaling * largest + kSubnormal * (1 + std::abs(spec_.postscale));
}

void CompressedCollectives::report_bound() {
  double bound = bound_;
  for (std::size_t r = 0; r < ranks() && size_ > 1; ++r) {
    const std::size_t end = gathered_at(r, segments_ - 1) + gathered_bytes(r, segments_ - 1);
    double of_owner;
    std::memcpy(&of_owner, gathered_.at_least(0) + end - sizeof of_owner, sizeof of_owner);
    bound = std::max(bound, of_owner);
  }
  if (spec_.error_bound != nullptr) *spec_.error_bound = bound;
  conclude({});
}

void CompressedCollectives::conclude(Status outcome) {
  inner_ = nullptr;
  kind_ = Inner::none;
  Completion* const completion = std::exchange(completion_, nullptr);
  if (completion != nullptr) completion->finish(std::move(outcome));
}

void CompressedCollectives::interrupt(const Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  conclude(why);
}

std::string CompressedCollectives::phase() const {
  static constexpr std::string_view kKinds[] = {"converting", "alone", "exchange", "gather"};
  std::string text = fmt::format("{} compressed to {}, {}", fdl::name_of(spec_.collective),
                                 fdl::name_of(spec_.compression), kKinds[static_cast<std::size_t>(kind_)]);
  if (inner_ != nullptr) text += ": " + inner_->phase();
  return text;
}

// ---- Conversions ----

// Converts a piece: what the next inner collective needs first.
bool CompressedCollectives::convert_piece() {
  const std::size_t exchanged = exchanges_ - (kind_ == Inner::exchange ? 1 : 0);
  const std::size_t gathered = gathers_ - (kind_ == Inner::gather ? 1 : 0);
  const bool next_is_ready = quantised_.segment > exchanges_ || quantised_.segment == segments_;
  if (folded_.segment < exchanged && next_is_ready) {
    fold_piece();
  } else if (quantised_.segment < segments_) {
    quantise_piece();
  } else if (spread_.segment < gathered && !is(Collective::reduce_scatter)) {
    spread_piece();
  } else {
    return false;
  }
  return true;
}

// An allgather quantises this rank's part only, into its place of the results.
void CompressedCollectives::quantise_piece() {
  const bool gathers = is(Collective::allgather);
  Conversion& c = quantised_;
  const Chunk part = part_of(gathers ? me() : c.chunk, c.segment);
  if (const std::size_t count = std::min(kPieceElements, part.count - c.at); count > 0) {
    std::byte* const to =
        gathers ? gathered_.at_least(0) + gathered_at(me(), c.segment) + bytes_of(c.at) : sent_.at_least(0) + c.bytes;
    const float* const from = input_ + part.first - (gathers ? chunks_[me()].first : 0) + c.at;
    quantise(spec_.compression, to, from, count, static_cast<float>(gathers ? 1 : spec_.prescale));
    if (gathers) raise_bound(error_bound(spec_.compression, to, count));
    c.at += count;
    c.bytes += bytes_of(count);
  }
  if (c.at < part.count) return;
  c.at = 0;
  if (gathers || ++c.chunk == ranks()) {
    c.chunk = 0;
    ++c.segment;
  }
}

void CompressedCollectives::fold_piece() {
  Conversion& c = folded_;
  const Chunk part = part_of(me(), c.segment);
  const std::size_t stride = bytes_of(part.count);
  const std::byte* const from = received_.at_least(0) + received_at(c.segment);
  const std::size_t end = std::min(part.count, c.at + kPieceElements);
  std::byte* const to = gathered_.at_least(0) + gathered_at(me(), c.segment);
  for (; c.at < end; c.at += std::min(kSumElements, end - c.at)) {
    fold(from + bytes_of(c.at), stride, part.first - chunks_[me()].first + c.at, std::min(kSumElements, end - c.at),
         to + bytes_of(c.at));
  }
  if (c.at < part.count) return;
  c.at = 0;
  ++c.segment;
}

void CompressedCollectives::spread_piece() {
  Conversion& c = spread_;
  const Chunk part = part_of(c.chunk, c.segment);
  if (const std::size_t count = std::min(kPieceElements, part.count - c.at); count > 0) {
    dequantise(spec_.compression, output_ + part.first + c.at, gathered_.at_least(0) + c.bytes, count);
    c.at += count;
    c.bytes += bytes_of(count);
  }
  if (c.at < part.count) return;
  c.at = 0;
  if (c.segment + 1 == segments_) c.bytes += sizeof bound_;  // the owner's bound
  if (++c.chunk == ranks()) {
    c.chunk = 0;
    ++c.segment;
  }
}

// Adds all ranks' blocks of a part of this rank's chunk, in rank order: element `first` of the chunk and those behind
// it.
void CompressedCollectives::fold(const std::byte* from, std::size_t stride, std::size_t first, std::size_t count,
                                 std::byte* to) {
  const bool scatters = is(Collective::reduce_scatter);
  float* const sums = scatters ? output_ + first : sums_.data();
  dequantise(spec_.compression, sums, from, count);
  for (std::size_t r = 1; r < ranks(); ++r) add_dequantised(spec_.compression, sums, from + r * stride, count);
  if (scatters) {
    if (spec_.postscale != 1) scale(Dtype::float32, sums, sums, count, spec_.postscale);
    return bound_fold(from, stride, count, nullptr);
  }
  quantise(spec_.compression, to, sums, count, static_cast<float>(spec_.postscale));
  bound_fold(from, stride, count, to);
}

// `result`: the quantised sums, or null where they stay float32. docs/compression.md names the terms.
void CompressedCollectives::bound_fold(const std::byte* from, std::size_t stride, std::size_t count,
                                       const std::byte* result) {
  const std::size_t block = block_bytes(spec_.compression);
  const double postscale = std::abs(spec_.postscale);
  BlockBound sums[kSumElements / kBlockElements];
  for (std::size_t r = 0; r < ranks(); ++r) add_bounds(spec_.compression, from + r * stride, blocks_of(count), sums);
  for (std::size_t i = 0; i < blocks_of(count); ++i) {
    const BlockBound& sum = sums[i];
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
