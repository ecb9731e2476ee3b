// LockedOrder executes one rank's part of a repeating order of buckets. Nothing is negotiated while the order is
// locked: each rank publishes its readiness, and all ranks derive from it what runs next.
//
// Position p of the order is bucket p % buckets. A rank publishes the number of positions of which it has all tensors,
// counted from the first. Publishing is the promise to run them. A position begins when every rank has published it, so
// no position is begun by some ranks only, and nothing that was begun is taken back. The members of a group launch
// (group_launch.h) are published in one step.
//
//   Leaving.          A rank with a request outside the order publishes its count once more, frozen. A rank that
//                     reads a frozen count freezes too. When all ranks are frozen, the counts are final and all ranks
//                     compute the same least count m: the positions below m run everywhere. Positions from m on were
//                     begun nowhere, and their tensors are negotiated as usual. A departed rank counts as frozen.
//
//   Ending.         An order may have a number of rounds, after which it ends. The root then sends a plan that says so.
//                   Each rank ends the order after the same position, and applies the plan afterwards.
//
// Leaving needs no decision and no message, so any number of ranks may freeze at the same time. The class is pure: the
// caller publishes word() whenever it changes, and passes the words of the other ranks to read_words(). One thread
// calls it.
//
// An optimistic order is for ranks that cannot read each other's words. A position begins on a rank as soon as its
// tensors are present and the previous position has finished on that rank. The collective finishes nowhere before all
// ranks have begun it. Hence any two ranks are at most one position apart.
//
//   Leaving.          A rank that freezes reports to the root how many positions it has begun. The root makes the other
//                     ranks freeze and sends all of them the least and the greatest count (RootSession). Until then
//                     results that finish are not returned. Positions that all ranks have begun are valid. A position
//                     that only some ranks have begun is begun by the others with zeros, so that it ends. Its result is
//                     dropped on all ranks, and its tensors are negotiated as usual.
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
    uint32_t index;  // of the tensor within the bucket
  };
  // Returns the request that all ranks cache under a name, or null. It fixes the shape and scales that are expected.
  using CachedRequest = std::function<const Request*(const std::string& name)>;
  struct Start {
    uint32_t bucket;
    bool with_zeros;  // run it with zeros instead of this rank's tensors, so that it ends on the other ranks
  };
  // What becomes of the position that this rank has begun and not finished: its result is valid, is not decided yet
  // (do not return it), or is dropped.
  enum class Fate { real, open, dropped };

  // `buckets` has at least one bucket; none is empty and none is an error. The epoch identifies the order to readers.
  // `rounds`: how often the buckets run at most; 0: without end.
  LockedOrder(uint32_t epoch, int rank, int size, std::vector<Bucket> buckets, const CachedRequest& cached,
              bool optimistic = false, uint64_t rounds = 0);

  // Returns the tensor's place, or nothing if the order does not contain it; the caller must then leave the order.
  std::optional<Place> submit(const Request& request);
  void freeze();
  // Marks a departed rank: its published word is final.
  void depart(int rank);

  // The word that this rank publishes for the others to read.
  uint64_t word() const { return to_word({epoch_, published_, frozen_ && !concluded_}); }
  // Reads the published words of all ranks, word_of(rank), this rank's own included: only what other ranks can read
  // counts as promised or as final.
  template <typename WordOf>
  void read_words(const WordOf& word_of);
  // Returns the next bucket to run now, if any. The sequence is the same on all ranks.
  std::optional<Start> begin();
  bool may_begin() const {
    if (optimistic_ && next_ != finished_) return false;
    return optimistic_ && !all_frozen_ ? !frozen_ && next_ < published_ : next_ < ready_;
  }

  // ---- Only for an optimistic order ----
  bool optimistic() const { return optimistic_; }
  Fate fate() const;
  // The position that was begun last has finished on this rank.
  void finish() { ++finished_; }
  // All ranks are frozen with these counts. Returns false if this rank's own count contradicts them.
  [[nodiscard]] bool resume(Frozen counts);

  // ---- Only for an order with a number of rounds ----
  // Whether all rounds have begun on this rank (optimistic: finished), and no rank leaves the order.
  bool is_complete() const { return limit_ > 0 && next_ == limit_ && !frozen_ && (!optimistic_ || finished_ == next_); }
  // The root has completed the order, so all ranks have promised all rounds (optimistic: begun them). Returns false if
  // this rank has not.
  [[nodiscard]] bool conclude();
  bool concluded() const { return concluded_; }

  const std::vector<std::shared_ptr<const Bucket>>& buckets() const { return buckets_; }
  bool frozen() const { return frozen_; }
  // Whether no position will begin any more. The entries that are still in their places were begun on no rank.
  bool left() const { return all_frozen_ && next_ == ready_ && (!optimistic_ || finished_ == next_); }
  // Whether the rank that published `word` keeps the next position from beginning.
  bool is_behind(uint64_t word) const {
    const Readiness other = readiness_of(word);
    if (is_next_epoch(other)) return false;
    return other.epoch != epoch_ || other.count <= next_;
  }
  // Whether this rank has published the next position (optimistic: begun it) and other ranks are not as far.
  bool waits_for_others() const { return optimistic_ ? next_ > finished_ : published_ > next_; }
  std::size_t waiting() const { return waiting_; }  // number of tensors in their places
  // The number of positions begun; once all ranks of an optimistic order are frozen, only the valid ones.
  uint64_t begun() const { return optimistic_ && all_frozen_ ? std::min(next_, real_) : next_; }

 private:
  struct Tensor {
    Place place;
    uint32_t next_of_name;  // the next tensor of the same name in the order; itself if there is no other
    bool due = false;       // it is the one of its name that is submitted next
    bool present = false;
    std::optional<Request> expected;
  };

  const std::string& name_of(const Tensor& tensor) const {
    return buckets_[tensor.place.bucket]->names[tensor.place.index];
  }
  // Whether a rank is in the order that follows this one, so that it has published all rounds of this one.
  bool is_next_epoch(const Readiness& other) const {
    return limit_ > 0 && other.epoch == (epoch_ + 1) % kReadinessEpochs;
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
  std::vector<uint32_t> first_tensor_;  // by bucket: index into tensors_
  std::vector<uint32_t> missing_;       // by bucket: number of tensors that were not submitted yet
  std::unordered_map<std::string_view, uint32_t> by_name_;
  std::vector<bool> departed_;
  uint32_t guess_ = 0;           // the tensor expected next; tensors mostly arrive in order
  uint64_t published_ = 0;       // number of positions published
  uint32_t publish_bucket_ = 0;  // published_ % buckets
  uint64_t next_ = 0;            // number of positions begun
  uint32_t next_bucket_ = 0;
  uint64_t ready_ = 0;  // positions published by all ranks; optimistic: begun by any rank, set by resume()
  bool optimistic_;
  uint64_t finished_ = 0;  // optimistic: positions that have finished on this rank
  uint64_t real_ = 0;      // optimistic: positions that all ranks have begun, set by resume()
  std::size_t waiting_ = 0;
  bool frozen_ = false;
  bool all_frozen_ = false;  // the counts of all ranks are final
  uint64_t limit_ = 0;       // the number of positions of all rounds; 0: without end
  bool concluded_ = false;
};

template <typename WordOf>
void LockedOrder::read_words(const WordOf& word_of) {
  if (all_frozen_) return;
  ready_ = kMaxReadinessCount;
  all_frozen_ = true;
  for (int rank = 0; rank < size_; ++rank) {
    const Readiness there = readiness_of(word_of(rank));
    const bool here = there.epoch == epoch_;  // otherwise the rank has not locked this order yet
    const bool frozen = here && there.frozen;
    ready_ = std::min(ready_, here ? there.count : is_next_epoch(there) ? limit_ : 0);
    all_frozen_ = all_frozen_ && (frozen || departed_[static_cast<std::size_t>(rank)]);
    if (frozen) freeze();
  }
}

}  // namespace fdl
