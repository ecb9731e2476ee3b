// RepetitionDetector finds the period of the root's decisions and derives the order to lock from it.
#include "agree/order/repetition_detector.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "agree/order/bucket_cut.h"

namespace fdl {
namespace {

constexpr int kLongestPeriod = 16;          // sequences
constexpr std::size_t kSequencesKept = 64;  // each with its buckets
constexpr uint64_t kHardlyUsedRounds = 16;  // an order that ran fewer rounds cost more than it gained
constexpr int kMostRepeats = 1024;

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

uint64_t hash_of(const Bucket& bucket, std::size_t index) {
  uint64_t hash = std::hash<std::string>()(bucket.names[index]);
  hash = mix(hash, static_cast<uint64_t>(bucket.compression) << 24 | static_cast<uint64_t>(bucket.kind) << 16 |
                       static_cast<uint64_t>(bucket.dtype) << 8 | bucket.op);
  hash = mix(hash, static_cast<uint64_t>(bucket.root) << 32 | static_cast<uint32_t>(bucket.device));
  hash = mix(mix(hash, std::bit_cast<uint64_t>(bucket.prescale)), std::bit_cast<uint64_t>(bucket.postscale));
  if (!bucket.element_counts.empty()) hash = mix(hash, static_cast<uint64_t>(bucket.element_counts[index]));
  for (const int64_t rows : bucket.rows) hash = mix(hash, static_cast<uint64_t>(rows));
  return hash;
}

// Whether tensors of the bucket may have overtaken others.
bool is_prior(const Bucket& bucket, const FindRequest& find) {
  return std::ranges::any_of(bucket.names, [&](const std::string& name) {
    const Request* request = find(name);
    return request != nullptr && request->priority > 0;
  });
}

}  // namespace

void RepetitionDetector::note(const Plan& plan, bool usual) {
  period_ = 0;
  if (repeats_ == 0) return;
  const auto lockable = [this](const Bucket& bucket) { return may_repeat(bucket); };
  if (!usual || !std::ranges::all_of(plan.buckets, lockable)) return reset();
  for (const Bucket& bucket : plan.buckets) append(bucket);
  period_ = find_period();
}

// An optimistic order takes only collectives that cannot finish on any rank before all ranks have begun them: barriers
// and non-empty allreduces. A device's allreduce is excluded, because it is complete for the host once it is queued.
bool RepetitionDetector::may_repeat(const Bucket& bucket) const {
  if (bucket.code != Code::ok || bucket.kind == RequestKind::join || bucket.names.empty()) return false;
  if (bucket.apart) return false;  // its requests differ between ranks, so none can be the expected one
  if (!optimistic_ || bucket.kind == RequestKind::barrier) return true;
  return bucket.kind == RequestKind::allreduce && bucket.device < 0 &&
         std::ranges::all_of(bucket.element_counts, [](int64_t count) { return count > 0; });
}

// A bucket in which a name repeats is divided between the old sequence and the new one.
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

// Compares the finished sequence with the one each period ago. The sums of hashes ignore the order of tensors.
void RepetitionDetector::close() {
  matches_.resize(kLongestPeriod + 1, 0);
  for (std::size_t period = 1; period <= kLongestPeriod; ++period) {
    const bool equal = closed_.size() >= period && ago(period).tensors == open_.tensors;
    matches_[period] = equal ? matches_[period] + 1 : 0;
  }
  closed_.push_back(std::exchange(open_, {}));
  if (closed_.size() > kSequencesKept) closed_.pop_front();
  names_.clear();
}

void RepetitionDetector::reset() {
  closed_.clear();
  open_ = {};
  names_.clear();
  matches_.clear();
  period_ = 0;
}

// The open sequence is complete when it equals the one that it would repeat; a period that ends with it is locked
// first. One that ends within a plan is locked when it has occurred once more.
int RepetitionDetector::find_period() const {
  if (matches_.empty()) return 0;
  for (std::size_t period = 1; period <= kLongestPeriod && period <= closed_.size(); ++period) {
    const int repeats = is_all_of(ago(period)) ? due_ - 1 : due_;
    if (matches_[period] + 1 >= repeats * static_cast<int>(period) && is_part_of(ago(period)))
      return static_cast<int>(period);
  }
  return 0;
}

// Whether the tensors of the open sequence are those of the same names in `sequence`.
bool RepetitionDetector::is_part_of(const Sequence& sequence) const {
  uint64_t tensors = 0;
  std::size_t count = 0;
  for (const Bucket& bucket : sequence.buckets) {
    for (std::size_t i = 0; i < bucket.names.size(); ++i) {
      if (!names_.contains(bucket.names[i])) continue;
      tensors += hash_of(bucket, i);
      ++count;
    }
  }
  return count == names_.size() && tensors == open_.tensors;
}

// The buckets of `sequence` without the tensors of the open one.
std::vector<Bucket> RepetitionDetector::rest_of(const Sequence& sequence) const {
  std::vector<Bucket> rest;
  for (const Bucket& bucket : sequence.buckets) {
    Bucket part = without_tensors(bucket);
    for (std::size_t i = 0; i < bucket.names.size(); ++i) {
      if (!names_.contains(bucket.names[i])) append_tensor(part, bucket, i);
    }
    part.launch_with_next = bucket.launch_with_next;
    if (!part.names.empty()) {
      rest.push_back(std::move(part));
    } else if (!rest.empty()) {
      rest.back().launch_with_next = false;
    }
  }
  return rest;
}

// Of the occurrences of this sequence, returns the one with the fewest buckets: the others were divided by timing.
// Where tensors overtake others, returns the last one, because the first steps of a program are often slower or faster
// than the later ones. `back` counts sequences from the end; 0 is the open one.
const RepetitionDetector::Sequence& RepetitionDetector::best_of_those_like(std::size_t back,
                                                                           const FindRequest& find) const {
  const auto period = static_cast<std::size_t>(period_);
  const Sequence* best = back == 0 ? &open_ : &ago(back);
  if (std::ranges::any_of(best->buckets, [&](const Bucket& bucket) { return is_prior(bucket, find); })) return *best;
  for (std::size_t count = 1; count < static_cast<std::size_t>(repeats_) && back + count * period <= closed_.size();
       ++count) {
    const Sequence& other = ago(back + count * period);
    if (other.tensors == best->tensors && other.buckets.size() < best->buckets.size()) best = &other;
  }
  return *best;
}

// The last bucket of a sequence is launched with none of the next sequence.
std::vector<Bucket> RepetitionDetector::base(const FindRequest& find) const {
  std::vector<Bucket> base;
  const auto append = [&base](const std::vector<Bucket>& buckets) {
    std::ranges::copy(buckets, std::back_inserter(base));
    if (!base.empty()) base.back().launch_with_next = false;
  };
  const auto period = static_cast<std::size_t>(period_);
  if (!is_all_of(ago(period))) append(rest_of(best_of_those_like(period, find)));
  for (std::size_t back = period; back-- > 0;) append(best_of_those_like(back, find).buckets);
  return base;
}

std::vector<Bucket> RepetitionDetector::order(const FindRequest& find) const {
  return cut_order(base(find), std::nullopt, optimistic_, group_launch_bytes_, find);
}

void RepetitionDetector::locked() { reset(); }

void RepetitionDetector::left(uint64_t rounds) {
  reset();
  due_ = rounds < kHardlyUsedRounds ? std::min(due_ * 2, kMostRepeats) : repeats_;
}

}  // namespace fdl
