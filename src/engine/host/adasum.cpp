// Adasum runs its levels as a state machine: exchange, dot products, combination; then it gathers the results.
#include "engine/host/adasum.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "data/half.h"
#include "data/reduce.h"

namespace fdl {
namespace {

// The number of independent partial sums. The compiler can vectorize them, and the order of additions stays fixed.
constexpr std::size_t kLanes = 8;

// Adds a.b, a.a and b.b to `dots`.
template <class T>
void add_dots(double* dots, const T* a, const T* b, std::size_t count) {
  std::array<double, kLanes> ab{}, aa{}, bb{};
  const auto add = [&](std::size_t lane, std::size_t i) {
    const double x = a[i];
    const double y = b[i];
    ab[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(lane, i + lane);
  }
  for (; i < count; ++i) add(0, i);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    dots[0] += ab[lane];
    dots[1] += aa[lane];
    dots[2] += bb[lane];
  }
}

template <class T>
void combine(T* mine, const T* others, std::size_t count, double factor, double other_factor) {
  for (std::size_t i = 0; i < count; ++i) {
    mine[i] = static_cast<T>(factor * static_cast<double>(mine[i]) + other_factor * static_cast<double>(others[i]));
  }
}

// The coefficient of one vector. A zero vector shares nothing with the other, so its coefficient is 1.
double factor_of(double dot, double square) { return square > 0 ? 1 - dot / (2 * square) : 1; }

// Calls body(bits, to_float, from_float) with the conversions of a type smaller than float32.
template <class Body>
void with_codec(Dtype dtype, Body body) {
  switch (dtype) {
    case Dtype::float16:
      return body(uint16_t{}, float16_to_float, float_to_float16);
    case Dtype::bfloat16:
      return body(uint16_t{}, bfloat16_to_float, float_to_bfloat16);
    case Dtype::float8_e4m3:
      return body(uint8_t{}, float8_e4m3_to_float, float_to_float8_e4m3);
    case Dtype::float8_e5m2:
      return body(uint8_t{}, float8_e5m2_to_float, float_to_float8_e5m2);
    default:
      FDL_CHECK(false);
  }
}

}  // namespace

void adasum_load(Dtype dtype, std::byte* work, const void* tensor, std::size_t count, double factor) {
  if (kind_of(dtype) == DtypeKind::real) return scale(dtype, work, tensor, count, factor);
  with_codec(dtype, [&]<class Bits>(Bits, auto to_float, auto) {
    auto* target = reinterpret_cast<float*>(work);
    const auto* source = static_cast<const Bits*>(tensor);
    for (std::size_t i = 0; i < count; ++i) target[i] = to_float(source[i]) * static_cast<float>(factor);
  });
}

void adasum_store(Dtype dtype, void* tensor, const std::byte* work, std::size_t count, double factor) {
  if (kind_of(dtype) == DtypeKind::real) return scale(dtype, tensor, work, count, factor);
  with_codec(dtype, [&]<class Bits>(Bits, auto, auto from_float) {
    auto* target = static_cast<Bits*>(tensor);
    const auto* source = reinterpret_cast<const float*>(work);
    for (std::size_t i = 0; i < count; ++i) target[i] = from_float(source[i] * static_cast<float>(factor));
  });
}

Adasum::Adasum(Communicator& comm, Dtype work, std::vector<std::size_t> ends, std::byte* values, std::byte* scratch)
    : comm_(comm),
      work_(work),
      element_(size_of(work)),
      ends_(std::move(ends)),
      values_(values),
      scratch_(scratch),
      mine_{0, ends_.empty() ? 0 : ends_.back()},
      dots_(3 * ends_.size()),
      all_dots_(dots_.size() * static_cast<std::size_t>(comm.size())) {
  // Each level halves the range, and rank ^ (1 << level) must exist.
  const auto size = static_cast<unsigned>(comm.size());
  FDL_CHECK((size & (size - 1)) == 0);
  if (size > 1 && mine_.count() > 0) begin_level();
}

// ---- Ranges: what each rank works on ----

Adasum::Range Adasum::halved(Range range, int rank, int level) const {
  const std::size_t middle = range.begin + range.count() / 2;
  return ((rank >> level) & 1) == 0 ? Range{range.begin, middle} : Range{middle, range.end};
}

// The range that `rank` has after all levels.
Adasum::Range Adasum::owned_by(int rank) const {
  Range range{0, ends_.back()};
  for (int level = 0; (1 << level) < comm_.size(); ++level) range = halved(range, rank, level);
  return range;
}

// The part of a tensor that lies within this rank's range; may be empty.
Adasum::Range Adasum::part_of(std::size_t tensor) const {
  const std::size_t begin = std::max(tensor == 0 ? 0 : ends_[tensor - 1], mine_.begin);
  const std::size_t end = std::min(ends_[tensor], mine_.end);
  return {begin, std::max(begin, end)};
}

// ---- Collectives ----

// Starts one ordered collective of the communicator. The operation's buffers must stay until it is done.
void Adasum::start(Collective collective, Dtype dtype, const void* input, void* output) {
  operation_.spec = {.collective = collective, .dtype = dtype, .counts = counts_, .recv_counts = recv_counts_};
  operation_.buffers = {input, output};
  operation_.completion = {};
  comm_.start(operation_);
}

// Sends the partner its half and receives the partner's values of this rank's half into scratch.
void Adasum::begin_level() {
  const auto partner = static_cast<std::size_t>(comm_.rank() ^ (1 << level_));
  const Range kept = halved(mine_, comm_.rank(), level_);
  const Range given = halved(mine_, comm_.rank() ^ (1 << level_), level_);
  counts_.assign(static_cast<std::size_t>(comm_.size()), 0);
  recv_counts_ = counts_;
  counts_[partner] = given.count();
  recv_counts_[partner] = kept.count();
  mine_ = kept;
  stage_ = Stage::exchange;
  start(Collective::alltoall, work_, values_ + given.begin * element_, scratch_);
}

// ---- Passes over memory ----

// `a` is always the vector of the left half's rank, so both partners compute the same a.a and b.b.
void Adasum::dot_one() {
  const Range part = part_of(index_);
  double* dots = &dots_[3 * index_];
  dots[0] = dots[1] = dots[2] = 0;
  const std::byte* own = values_ + part.begin * element_;
  const std::byte* other = scratch_ + (part.begin - mine_.begin) * element_;
  const std::byte* a = keeps_left() ? own : other;
  const std::byte* b = keeps_left() ? other : own;
  if (work_ == Dtype::float64) {
    add_dots(dots, reinterpret_cast<const double*>(a), reinterpret_cast<const double*>(b), part.count());
  } else {
    add_dots(dots, reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), part.count());
  }
}

void Adasum::combine_one() {
  double ab = 0, aa = 0, bb = 0;
  const int block = 1 << (level_ + 1);
  const int first = comm_.rank() / block * block;
  // Every rank adds the parts in the same order, so that all get the same bits.
  for (int rank = first; rank < first + block; ++rank) {
    const double* dots = &all_dots_[static_cast<std::size_t>(rank) * dots_.size() + 3 * index_];
    ab += dots[0];
    aa += dots[1];
    bb += dots[2];
  }
  const double left = factor_of(ab, aa);
  const double right = factor_of(ab, bb);
  const Range part = part_of(index_);
  std::byte* own = values_ + part.begin * element_;
  const std::byte* other = scratch_ + (part.begin - mine_.begin) * element_;
  const double factor = keeps_left() ? left : right;
  const double other_factor = keeps_left() ? right : left;
  if (work_ == Dtype::float64) {
    combine(reinterpret_cast<double*>(own), reinterpret_cast<const double*>(other), part.count(), factor, other_factor);
  } else {
    combine(reinterpret_cast<float*>(own), reinterpret_cast<const float*>(other), part.count(), factor, other_factor);
  }
}

// The gathered ranges lie in rank order; this copies one to where its owner had it in the vector.
void Adasum::place_one() {
  const auto rank = static_cast<int>(index_);
  std::size_t from = 0;
  for (int before = 0; before < rank; ++before) from += counts_[static_cast<std::size_t>(before)];
  const Range range = owned_by(rank);
  if (range.count() > 0) {
    std::memcpy(values_ + range.begin * element_, scratch_ + from * element_, range.count() * element_);
  }
}

// ---- Progress ----

bool Adasum::progress() {
  const bool waits = stage_ == Stage::exchange || stage_ == Stage::share_dots || stage_ == Stage::gather;
  if (stage_ == Stage::done || (waits && !operation_.completion.done)) return false;
  if (waits && !operation_.completion.status.ok()) {
    stage_ = Stage::done;
    return true;
  }
  switch (stage_) {
    case Stage::exchange:
      index_ = 0;
      stage_ = Stage::dot;
      break;
    case Stage::dot:
      dot_one();
      if (++index_ < ends_.size()) break;
      counts_.assign(static_cast<std::size_t>(comm_.size()), dots_.size());
      stage_ = Stage::share_dots;
      start(Collective::allgather, Dtype::float64, dots_.data(), all_dots_.data());
      break;
    case Stage::share_dots:
      index_ = 0;
      stage_ = Stage::combine;
      break;
    case Stage::combine:
      combine_one();
      if (++index_ < ends_.size()) break;
      if ((1 << ++level_) < comm_.size()) {
        begin_level();
        break;
      }
      for (int rank = 0; rank < comm_.size(); ++rank) counts_[static_cast<std::size_t>(rank)] = owned_by(rank).count();
      stage_ = Stage::gather;
      start(Collective::allgather, work_, values_ + mine_.begin * element_, scratch_);
      break;
    case Stage::gather:
      index_ = 0;
      stage_ = Stage::place;
      break;
    case Stage::place:
      place_one();
      if (++index_ == static_cast<std::size_t>(comm_.size())) stage_ = Stage::done;
      break;
    case Stage::done:
      break;
  }
  return true;
}

}  // namespace fdl
