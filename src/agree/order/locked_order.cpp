// LockedOrder executes one rank's part of the protocol that locked_order.h describes.
#include "agree/order/locked_order.h"

namespace fdl {
namespace {

// The requests of these kinds are equal on all ranks; allgather and alltoall may differ in their rows.
bool same_on_all(RequestKind kind) { return kind != RequestKind::allgather && kind != RequestKind::alltoall; }

// Ignores the priority: it only sorts what one plan decides, and a locked order is sorted already.
bool equal_but_priority(const Request& a, const Request& b) {
  return a.name == b.name && a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.shape == b.shape && a.splits == b.splits && a.prescale == b.prescale && a.postscale == b.postscale &&
         a.group_size == b.group_size && a.device == b.device && a.place == b.place && a.compression == b.compression &&
         a.group == b.group;
}

// Compares this rank's request with what the bucket records of it, for tensors without a shared request.
bool fits_bucket(const Request& request, const Bucket& bucket, std::size_t index, int rank, int size) {
  if (request.kind != bucket.kind || request.dtype != bucket.dtype || request.op != bucket.op ||
      request.root != bucket.root || request.prescale != bucket.prescale || request.postscale != bucket.postscale ||
      request.device != bucket.device || request.compression != bucket.compression) {
    return false;
  }
  const auto me = static_cast<std::size_t>(rank);
  const auto ranks = static_cast<std::size_t>(size);
  switch (request.kind) {
    case RequestKind::allreduce:
    case RequestKind::broadcast:
    case RequestKind::reduce_scatter:
      return request.element_count() == bucket.element_counts[index];
    case RequestKind::allgather:
      return !request.shape.empty() && request.shape.front() == bucket.rows[me];
    case RequestKind::alltoall: {
      const auto mine = bucket.rows.begin() + static_cast<std::ptrdiff_t>(me * ranks);
      if (request.splits.empty()) {
        return !request.shape.empty() &&
               std::all_of(mine, mine + size, [&](int64_t rows) { return rows * size == request.shape.front(); });
      }
      return request.splits.size() == ranks && std::equal(request.splits.begin(), request.splits.end(), mine);
    }
    case RequestKind::barrier:
      return true;
    case RequestKind::join:
      break;
  }
  return false;
}

}  // namespace

LockedOrder::LockedOrder(uint32_t epoch, int rank, int size, std::vector<Bucket> buckets, const CachedRequest& cached,
                         bool optimistic, uint64_t rounds)
    : epoch_(epoch % kReadinessEpochs),
      rank_(rank),
      size_(size),
      departed_(static_cast<std::size_t>(size), false),
      optimistic_(optimistic),
      limit_(rounds * buckets.size()) {
  std::unordered_map<std::string_view, uint32_t> last;
  // The tensors of one name form a ring through next_of_name; `last` is the ring's end so far.
  for (Bucket& bucket : buckets) {
    const auto number = static_cast<uint32_t>(buckets_.size());
    buckets_.push_back(std::make_shared<const Bucket>(std::move(bucket)));
    first_tensor_.push_back(static_cast<uint32_t>(tensors_.size()));
    missing_.push_back(static_cast<uint32_t>(buckets_.back()->names.size()));
    for (uint32_t index = 0; index < missing_.back(); ++index) {
      const auto id = static_cast<uint32_t>(tensors_.size());
      const std::string& name = buckets_.back()->names[index];
      tensors_.push_back({.place = {number, index}});
      const uint32_t first = by_name_.try_emplace(name, id).first->second;
      tensors_.back().next_of_name = first;
      tensors_.back().due = first == id;
      if (first != id) tensors_[last[name]].next_of_name = id;
      last[name] = id;
      const Request* request = cached(name);
      const bool usable = request != nullptr && same_on_all(request->kind) &&
                          fits_bucket(*request, *buckets_.back(), index, rank_, size_);
      if (usable) tensors_.back().expected = *request;
    }
  }
}

std::optional<uint32_t> LockedOrder::find(const std::string& name) const {
  if (tensors_[guess_].due && name_of(tensors_[guess_]) == name) return guess_;
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  uint32_t id = found->second;
  while (!tensors_[id].due) id = tensors_[id].next_of_name;
  return id;
}

// Where all ranks share no request of this name, the first request that arrives becomes the expected one.
bool LockedOrder::fits(Tensor& tensor, const Request& request) const {
  if (tensor.expected) return equal_but_priority(*tensor.expected, request);
  const Bucket& bucket = *buckets_[tensor.place.bucket];
  if (request.place >= 0) return false;  // the bucket does not record places in symmetric memory
  if (!fits_bucket(request, bucket, tensor.place.index, rank_, size_)) return false;
  tensor.expected = request;
  return true;
}

std::optional<LockedOrder::Place> LockedOrder::submit(const Request& request) {
  if (frozen_) return std::nullopt;
  const auto id = find(request.name);
  if (!id) return std::nullopt;
  Tensor& tensor = tensors_[*id];
  if (tensor.present || !fits(tensor, request)) return std::nullopt;
  tensor.present = true;
  tensor.due = false;
  // The next submission of this name belongs to its next tensor in the order.
  tensors_[tensor.next_of_name].due = true;
  guess_ = *id + 1 == tensors_.size() ? 0 : *id + 1;
  ++waiting_;
  if (--missing_[tensor.place.bucket] == 0) publish_ready();
  return tensor.place;
}

// A position is published once all its tensors are present, and only after the previous run of its bucket has begun.
// The members of a group launch are published in one step, so that no rank ever reads only some of them as ready.
void LockedOrder::publish_ready() {
  for (;;) {
    const uint32_t behind = behind_group(publish_bucket_);
    const uint64_t published = published_ + (behind - publish_bucket_);
    if (published > kMaxReadinessCount) return freeze();
    if (limit_ > 0 && published > limit_) return;
    for (uint32_t bucket = publish_bucket_; bucket < behind; ++bucket) {
      if (missing_[bucket] > 0) return;
    }
    if (published - next_ > buckets_.size()) return;
    published_ = published;
    publish_bucket_ = behind == buckets_.size() ? 0 : behind;
  }
}

// The index after the last bucket that is launched together with this one. Groups never cross the end of the order.
uint32_t LockedOrder::behind_group(uint32_t bucket) const {
  while (bucket + 1 < buckets_.size() && buckets_[bucket]->launch_with_next) ++bucket;
  return bucket + 1;
}

void LockedOrder::freeze() { frozen_ = true; }

void LockedOrder::depart(int rank) {
  departed_[static_cast<std::size_t>(rank)] = true;
  freeze();
}

std::optional<LockedOrder::Start> LockedOrder::begin() {
  if (!may_begin()) return std::nullopt;
  const Start start{next_bucket_, optimistic_ && all_frozen_};
  ++next_;
  next_bucket_ = start.bucket + 1 == buckets_.size() ? 0 : start.bucket + 1;
  if (start.with_zeros) return start;  // the entries of this bucket stay in their places
  const auto tensors = static_cast<uint32_t>(buckets_[start.bucket]->names.size());
  missing_[start.bucket] = tensors;
  const uint32_t first = first_tensor_[start.bucket];
  for (uint32_t id = first; id < first + tensors; ++id) tensors_[id].present = false;
  waiting_ -= tensors;
  return start;
}

// Only an optimistic order has provisional positions: the counts of all ranks decide their fate.
LockedOrder::Fate LockedOrder::fate() const {
  if (!frozen_) return Fate::real;
  if (!all_frozen_) return Fate::open;
  return next_ <= real_ ? Fate::real : Fate::dropped;
}

bool LockedOrder::resume(Frozen counts) {
  if (!optimistic_ || !frozen_ || all_frozen_) return false;
  // Any two ranks are at most one position apart, because a position ends only after all ranks have begun it.
  if (counts.least > next_ || counts.greatest < next_ || counts.greatest > counts.least + 1) return false;
  all_frozen_ = true;
  real_ = counts.least;
  ready_ = counts.greatest;
  return true;
}

bool LockedOrder::conclude() {
  if (limit_ == 0 || published_ != limit_ || (optimistic_ && next_ != limit_)) return false;
  frozen_ = all_frozen_ = concluded_ = true;
  ready_ = real_ = limit_;
  return true;
}

}  // namespace fdl
