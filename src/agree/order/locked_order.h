// LockedOrder: one rank's part in an order of buckets that repeats: nothing is negotiated, readiness is published.
//
// Position p of the order is bucket p % buckets. A rank publishes how many positions it has all tensors of, counted
// from the first; publishing is the promise to run them. A position begins when every rank has published it, so none
// is ever begun by some ranks and not by others, and nothing that was begun need be taken back. Those that begin
// together (together.h) are published together.
//
//   How it is left.   Whoever meets something that the order does not foresee publishes its count once more, frozen;
//                     whoever sees that freezes too. When all are frozen their counts are final, so all ranks know the
//                     same least count m: positions below m run everywhere, what is above m was begun nowhere and is
//                     asked for as usual. A rank that has departed counts as frozen where it stands.
//
// No rank decides and no message is sent, so it does not matter who freezes, nor how many at once. Pure: the words of
// the other ranks come from the caller, who publishes word() whenever it has changed.
//
// A blind order is for ranks that cannot read each other's words. A position begins on a rank as soon as its tensors
// are there and the one before it has finished here. Its collective itself proves that all ranks have begun it, for it
// finishes nowhere before that: so of any two ranks, one is at most one position ahead.
//
//   How it is left.   Whoever freezes tells the root how many positions it has begun; the root has the others freeze,
//                     and tells all the least count and the greatest (RootSession). Until then what finishes is kept
//                     back. Positions that all have begun are as good as ever. The one that only some have begun is
//                     begun by the others too, with zeros, so that it ends; its outcome is dropped everywhere, and its
//                     tensors are asked for as usual.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agree/negotiation/message.h"
#include "agree/order/readiness.h"

namespace fdl {

class LockedOrder {
 public:
  struct Place {
    uint32_t bucket;
    uint32_t index;  // in the bucket
  };
  // The request that all ranks know under a name, or null: its shape and scales are what is expected.
  using Known = std::function<const Request*(const std::string& name)>;
  struct Start {
    uint32_t bucket;
    bool hollow;  // without this rank's tensors, so that the others can end it
  };
  // What becomes of the position that this rank has begun and not finished.
  enum class Fate { real, open, dropped };

  // There is at least one bucket, and none is empty or an error.
  LockedOrder(uint32_t epoch, int rank, int size, std::vector<Bucket> buckets, const Known& known,
              bool optimistic = false);

  // Where the tensor belongs; nothing where the order does not foresee it: then the order must be left.
  std::optional<Place> submit(const Request& request);
  void freeze();
  // This rank's word will not change any more.
  void depart(int rank);

  // What this rank publishes.
  uint64_t word() const { return to_word({epoch_, published_, frozen_}); }
  // Takes in the words of all ranks as they are published: word_of(rank). This rank's own is one of them, for only what
  // the others can read is promised, or final.
  template <typename WordOf>
  void look(const WordOf& word_of);
  // The next bucket that must run now, in the order that is the same on all ranks.
  std::optional<Start> begin();
  bool may_begin() const {
    if (optimistic_ && next_ != finished_) return false;
    return optimistic_ && !settled_ ? !frozen_ && next_ < published_ : next_ < ready_;
  }

  // ---- blind ----
  bool optimistic() const { return optimistic_; }
  Fate fate() const;
  // What was begun last has ended here.
  void finish() { ++finished_; }
  // All are frozen. False where that cannot be: this rank's own count does not lie between.
  [[nodiscard]] bool resume(Frozen counts);

  const std::vector<std::shared_ptr<const Bucket>>& buckets() const { return buckets_; }
  bool frozen() const { return frozen_; }
  // Nothing will begin any more; what is still in its place was begun nowhere.
  bool left() const { return settled_ && next_ == ready_ && (!optimistic_ || finished_ == next_); }
  // Whether that rank, whose word this is, keeps the next position from beginning.
  bool is_behind(uint64_t word) const {
    const Readiness other = readiness_of(word);
    return other.epoch != epoch_ || other.count <= next_;
  }
  // This rank has published the next position, or begun it, and waits for others.
  bool waits_for_others() const { return optimistic_ ? next_ > finished_ : published_ > next_; }
  std::size_t waiting() const { return waiting_; }  // tensors in their places
  // Positions; once the order is settled, those that count.
  uint64_t begun() const { return optimistic_ && settled_ ? std::min(next_, real_) : next_; }

 private:
  struct Tensor {
    Place place;
    uint32_t next_of_name;  // the next in the order that has the same name; itself where there is no other
    bool due = false;       // of those of its name, the next to be submitted
    bool present = false;
    std::optional<Request> expected;
  };

  const std::string& name_of(const Tensor& tensor) const {
    return buckets_[tensor.place.bucket]->names[tensor.place.index];
  }
  std::optional<uint32_t> find(const std::string& name) const;
  bool fits(Tensor& tensor, const Request& request) const;
  void publish_ready();
  uint32_t behind_group(uint32_t bucket) const;

  uint32_t epoch_;
  int rank_;
  int size_;
  std::vector<std::shared_ptr<const Bucket>> buckets_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> first_tensor_;  // of each bucket
  std::vector<uint32_t> missing_;       // of each bucket: tensors that are not there yet
  std::unordered_map<std::string_view, uint32_t> by_name_;
  std::vector<bool> departed_;
  uint32_t guess_ = 0;           // tensors mostly come in their order
  uint64_t published_ = 0;       // positions
  uint32_t publish_bucket_ = 0;  // published_ % buckets
  uint64_t next_ = 0;            // positions begun
  uint32_t next_bucket_ = 0;
  uint64_t ready_ = 0;  // positions that all have published; blind: that any has begun, once that is known
  bool optimistic_;
  uint64_t finished_ = 0;  // blind: positions that have ended here
  uint64_t real_ = 0;      // blind: positions that all have begun, once that is known
  std::size_t waiting_ = 0;
  bool frozen_ = false;
  bool settled_ = false;
};

template <typename WordOf>
void LockedOrder::look(const WordOf& word_of) {
  if (settled_) return;
  ready_ = kMaxReadinessCount;
  settled_ = true;
  for (int rank = 0; rank < size_; ++rank) {
    const Readiness there = readiness_of(word_of(rank));
    const bool here = there.epoch == epoch_;  // else it has not heard of this order
    const bool frozen = here && there.frozen;
    ready_ = std::min(ready_, here ? there.count : 0);
    settled_ = settled_ && (frozen || departed_[static_cast<std::size_t>(rank)]);
    if (frozen) freeze();
  }
}

}  // namespace fdl
