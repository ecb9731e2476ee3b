// RepetitionDetector: recognises on the root that what is decided repeats, and says in which order to lock it.
#include "agree/order/repetition_detector.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <tuple>

namespace fdl {
namespace {

constexpr int kLongestPeriod = 16;          // segments
constexpr std::size_t kSegmentsKept = 64;   // with their buckets
constexpr uint64_t kHardlyUsedRounds = 16;  // an order that is left so soon cost more than it gained
constexpr int kMostRepeats = 1024;
// Copying a tensor into a shared bucket and back gains nothing once it is larger than what a collective costs to start.
// That is more between hosts, where the wire's delay is paid for each.
struct Cut {
  std::size_t alone_bytes;
  std::size_t segment_bytes;
};
constexpr Cut kCutInMemory{64 * 1024, 512 * 1024};
constexpr Cut kCutOnWires{512 * 1024, 8 * 1024 * 1024};
// A device packs a hundred times faster than it launches the next collective: 4 MiB in about 5 us, there and back.
constexpr Cut kCutOnDevices{4 * 1024 * 1024, 16 * 1024 * 1024};

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

uint64_t hash_of(const Bucket& bucket, std::size_t index) {
  uint64_t hash = std::hash<std::string>()(bucket.names[index]);
  hash = mix(hash, static_cast<uint64_t>(bucket.kind) << 16 | static_cast<uint64_t>(bucket.dtype) << 8 | bucket.op);
  hash = mix(hash, static_cast<uint64_t>(bucket.root) << 32 | static_cast<uint32_t>(bucket.device));
  hash = mix(mix(hash, std::bit_cast<uint64_t>(bucket.prescale)), std::bit_cast<uint64_t>(bucket.postscale));
  if (!bucket.element_counts.empty()) hash = mix(hash, static_cast<uint64_t>(bucket.element_counts[index]));
  for (const int64_t rows : bucket.rows) hash = mix(hash, static_cast<uint64_t>(rows));
  return hash;
}

// The bucket of a tensor alone, or of several that follow.
Bucket without_tensors(const Bucket& bucket) {
  Bucket copy;
  copy.kind = bucket.kind;
  copy.dtype = bucket.dtype;
  copy.op = bucket.op;
  copy.root = bucket.root;
  copy.prescale = bucket.prescale;
  copy.postscale = bucket.postscale;
  copy.device = bucket.device;
  copy.rows = bucket.rows;
  return copy;
}

void append_tensor(Bucket& to, const Bucket& from, std::size_t index) {
  to.names.push_back(from.names[index]);
  if (!from.element_counts.empty()) to.element_counts.push_back(from.element_counts[index]);
}

struct Piece {
  Bucket bucket;
  int32_t priority = 0;
  std::size_t last = 0;  // where its last tensor stood
  std::size_t bytes = 0;
};

// Small tensors of one priority stay together, up to segment_bytes; large ones go alone. A piece comes where its last
// tensor stood, so that it keeps nothing waiting that was ready before.
void cut(const Bucket& bucket, Cut limits, const FindRequest& find, std::vector<Bucket>& order) {
  if (bucket.names.size() == 1) {
    order.push_back(bucket);
    order.back().launch_with_next = false;
    return;
  }
  std::vector<Piece> pieces;
  std::map<int32_t, std::size_t> open;  // of each priority, the piece that small tensors go into
  for (std::size_t i = 0; i < bucket.names.size(); ++i) {
    const std::size_t bytes = static_cast<std::size_t>(bucket.element_counts[i]) * size_of(bucket.dtype);
    const Request* request = find(bucket.names[i]);
    const int32_t priority = request == nullptr ? 0 : request->priority;
    const auto found = open.find(priority);
    const bool alone = bytes > limits.alone_bytes;
    const bool fits = !alone && found != open.end() && pieces[found->second].bytes + bytes <= limits.segment_bytes;
    if (!fits) pieces.push_back({.bucket = without_tensors(bucket), .priority = priority});
    if (!fits && !alone) open[priority] = pieces.size() - 1;
    Piece& piece = fits ? pieces[found->second] : pieces.back();
    append_tensor(piece.bucket, bucket, i);
    piece.last = i;
    piece.bytes += bytes;
  }
  std::ranges::sort(pieces, {}, [](const Piece& piece) { return std::tuple(-int64_t{piece.priority}, piece.last); });
  for (Piece& piece : pieces) order.push_back(std::move(piece.bucket));
}

}  // namespace

void RepetitionDetector::note(const Plan& plan, bool usual) {
  period_ = 0;
  if (repeats_ == 0) return;
  const auto lockable = [this](const Bucket& bucket) { return may_repeat(bucket); };
  if (!usual || !std::ranges::all_of(plan.buckets, lockable)) return forget();
  for (const Bucket& bucket : plan.buckets) append(bucket);
  period_ = find_period();
}

// Without sight, only what needs something of every rank everywhere: a sum of any elements at all, and a barrier. (Not
// on a device, where a sum is done for the host as soon as it is queued.)
bool RepetitionDetector::may_repeat(const Bucket& bucket) const {
  if (bucket.code != Code::ok || bucket.kind == RequestKind::join || bucket.names.empty()) return false;
  if (bucket.apart) return false;  // no request for it is all ranks'
  if (!optimistic_ || bucket.kind == RequestKind::barrier) return true;
  return bucket.kind == RequestKind::allreduce && bucket.device < 0 &&
         std::ranges::all_of(bucket.element_counts, [](int64_t count) { return count > 0; });
}

void RepetitionDetector::append(const Bucket& bucket) {
  Bucket part = without_tensors(bucket);
  for (std::size_t i = 0; i < bucket.names.size(); ++i) {
    if (!names_.insert(bucket.names[i]).second) {
      if (!part.names.empty()) open_.buckets.push_back(std::exchange(part, without_tensors(bucket)));
      close();
      names_.insert(bucket.names[i]);
    }
    append_tensor(part, bucket, i);
    open_.tensors += hash_of(bucket, i);
  }
  part.launch_with_next = bucket.launch_with_next;
  open_.buckets.push_back(std::move(part));
}

void RepetitionDetector::close() {
  matches_.resize(kLongestPeriod + 1, 0);
  for (std::size_t period = 1; period <= kLongestPeriod; ++period) {
    const bool equal = closed_.size() >= period && ago(period).tensors == open_.tensors;
    matches_[period] = equal ? matches_[period] + 1 : 0;
  }
  closed_.push_back(std::exchange(open_, {}));
  if (closed_.size() > kSegmentsKept) closed_.pop_front();
  names_.clear();
}

void RepetitionDetector::forget() {
  closed_.clear();
  open_ = {};
  names_.clear();
  matches_.clear();
  period_ = 0;
}

// The open segment counts where it equals the one that it would repeat: then it is whole.
int RepetitionDetector::find_period() const {
  if (matches_.empty()) return 0;
  for (std::size_t period = 1; period <= kLongestPeriod && period <= closed_.size(); ++period) {
    const bool whole = ago(period).tensors == open_.tensors;
    if (whole && matches_[period] + 1 >= (due_ - 1) * static_cast<int>(period)) return static_cast<int>(period);
  }
  return 0;
}

// Of the times that this segment was seen, the one with the fewest buckets: timing kept others apart. 0: the open one.
const RepetitionDetector::Segment& RepetitionDetector::best_of_those_like(std::size_t back) const {
  const auto period = static_cast<std::size_t>(period_);
  const Segment* best = back == 0 ? &open_ : &ago(back);
  for (std::size_t seen = 1; seen < static_cast<std::size_t>(repeats_) && back + seen * period <= closed_.size();
       ++seen) {
    const Segment& other = ago(back + seen * period);
    if (other.tensors == best->tensors && other.buckets.size() < best->buckets.size()) best = &other;
  }
  return *best;
}

std::vector<Bucket> RepetitionDetector::order(const FindRequest& find) const {
  std::vector<Bucket> order;
  for (auto back = static_cast<std::size_t>(period_); back-- > 0;) {
    std::vector<Bucket> pieces;  // of buckets that began together
    const auto take_over = [&] {
      begin_group(pieces, std::min(group_launch_bytes_, kCutOnDevices.segment_bytes), find);
      std::ranges::move(pieces, std::back_inserter(order));
      pieces.clear();
    };
    for (const Bucket& bucket : best_of_those_like(back).buckets) {
      const Cut limits = bucket.device >= 0 ? kCutOnDevices : optimistic_ ? kCutOnWires : kCutInMemory;
      cut(bucket, limits, find, pieces);
      if (!bucket.launch_with_next) take_over();
    }
    take_over();
  }
  return order;
}

void RepetitionDetector::locked() { forget(); }

void RepetitionDetector::left(uint64_t rounds) {
  forget();
  due_ = rounds < kHardlyUsedRounds ? std::min(due_ * 2, kMostRepeats) : repeats_;
}

}  // namespace fdl
