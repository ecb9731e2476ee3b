// Submissions keeps what a rank has submitted and not begun: by name while it is negotiated, in its place while the
// order is locked.
//
// Each entry is either negotiated by its name (sent to the root, or still to be sent), or in its place of the locked
// order. It leaves once, by take() or begin(). Locking an order moves all negotiated entries into their places. Leaving
// the order moves the entries of all places back, to be sent. While an order is being left, nothing is sent.
//
// An operation that has failed without this rank's entry, because the rank is late, has failed on this rank too. The
// rank's next entry of that name is the one that belongs to it, and is refused with the same error. Otherwise it would
// meet the next entries of the other ranks, in one rank's order but not in the other's.
//
// The class is not synchronized: the progress thread of the group calls it.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "agree/order/locked_order.h"

namespace fdl {

// An Entry has a `request`. Its name must differ from those of all other entries here.
template <typename Entry>
class Submissions {
 public:
  // A bucket that begins, with this rank's entries of it.
  struct Begun {
    std::shared_ptr<const Bucket> bucket;
    std::vector<std::optional<Entry>> entries;
    // Of an optimistic order. `provisional`: some ranks may not have begun it. `with_zeros`: this rank begins it with
    // zeros.
    bool provisional = false;
    bool with_zeros = false;
    // The last of a round of a locked order: the number of that order on this rank; else 0.
    uint32_t ends_round = 0;
  };

  Submissions(int rank, int size) : rank_(rank), size_(size), departed_(static_cast<std::size_t>(size), false) {}

  void submit(Entry entry) {
    if (order_ && !order_->frozen()) {
      if (const auto place = order_->submit(entry.request)) return put(*place, std::move(entry));
      leave(entry.request.name);
    }
    negotiate(std::move(entry));
  }

  // ---- Negotiated ----
  bool has_unsent() const { return !unsent_.empty() && !order_; }
  // The requests to send to the root, as many as a message has room for; the pointers are valid until the next call of
  // any function here. The members of a group are sent together.
  std::vector<const Request*> take_unsent() {
    std::vector<const Request*> requests;
    requests.reserve(unsent_.size());
    MessageRoom room;
    std::optional<std::unordered_set<std::string_view>> groups;  // that the message has begun, once it is full
    std::vector<Negotiated*> rest;
    for (Negotiated* negotiated : unsent_) {
      const Request& request = negotiated->entry.request;
      if (room.is_full()) {
        if (!groups) {
          groups.emplace();
          for (const Request* one : requests) {
            if (!one->group.empty()) groups->insert(one->group);
          }
        }
        if (!groups->contains(request.group)) {
          rest.push_back(negotiated);
          continue;
        }
      }
      room.take(request.message_bytes());
      negotiated->sent = true;
      requests.push_back(&request);
    }
    unsent_.assign(rest.begin(), rest.end());  // in the memory that it has
    return requests;
  }
  // This rank's entries of a bucket of a plan. A bucket that runs cannot refer to entries that were not sent yet. A
  // bucket with an error ends those too, and those that are still to come.
  std::vector<std::optional<Entry>> take(const std::shared_ptr<const Bucket>& bucket) {
    const bool has_failed = !bucket->error.empty();
    std::vector<std::optional<Entry>> entries(bucket->names.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto found = negotiated_.find(bucket->names[i]);
      if (found == negotiated_.end()) {
        if (has_failed && !has_joined()) late_[bucket->names[i]].push_back(bucket);
        continue;
      }
      if (!found->second.sent && !has_failed) continue;
      if (!found->second.sent) std::erase(unsent_, &found->second);
      entries[i] = std::move(found->second.entry);
      negotiated_.erase(found);
    }
    return entries;
  }

  // ---- Late ----
  // An entry of an operation that has failed before, and the bucket with the error.
  struct Refused {
    Entry entry;
    std::shared_ptr<const Bucket> bucket;
  };
  bool has_refused() const { return !refused_.empty(); }
  // Call when all entries of a group are submitted.
  std::vector<Refused> take_refused() {
    if (!refused_.empty() && !order_) dissolve_groups();  // else finish_leaving() does it
    return std::exchange(refused_, {});
  }

  // ---- Locked ----
  const LockedOrder* order() const { return order_.get(); }
  // Why the order was left, or is being left.
  const std::string& reason() const { return reason_; }

  // From here on `buckets` run again and again. The root has dropped all requests that it did not decide.
  void lock(std::vector<Bucket> buckets, const LockedOrder::CachedRequest& cached, bool optimistic = false,
            uint64_t rounds = 0) {
    FDL_CHECK(!order_);
    reason_.clear();
    frozen_count_sent_ = false;
    order_ = std::make_unique<LockedOrder>(++epochs_, rank_, size_, std::move(buckets), cached, optimistic, rounds);
    places_.clear();
    for (const auto& bucket : order_->buckets()) places_.emplace_back(bucket->names.size());
    for (int rank = 0; rank < size_; ++rank) {
      if (departed_[static_cast<std::size_t>(rank)]) order_->depart(rank);
    }
    if (order_->frozen()) reason_ = "a rank has left";
    unsent_.clear();
    auto negotiated = std::exchange(negotiated_, {});
    for (auto& [name, one] : negotiated) submit(std::move(one.entry));
  }
  void leave(std::string_view why) {
    if (!order_ || order_->frozen()) return;
    reason_ = why;
    order_->freeze();
  }
  void depart(int rank) {
    departed_[static_cast<std::size_t>(rank)] = true;
    if (!order_) return;
    if (!order_->frozen()) reason_ = "a rank has left";
    order_->depart(rank);
  }
  template <typename WordOf>
  void read_words(const WordOf& word_of) {
    const bool was_frozen = order_->frozen();
    order_->read_words(word_of);
    if (!was_frozen && order_->frozen()) reason_ = "another rank met something unexpected";
  }
  std::optional<Begun> begin() {
    const auto start = order_->begin();
    if (!start) return std::nullopt;
    const auto& bucket = order_->buckets()[start->bucket];
    std::vector<std::optional<Entry>> entries(bucket->names.size());
    if (!start->with_zeros) entries.swap(places_[start->bucket]);
    const bool ends_round = start->bucket + 1 == order_->buckets().size();
    return Begun{bucket, std::move(entries), order_->optimistic(), start->with_zeros, ends_round ? epochs_ : 0};
  }
  // The root has completed all rounds of the order. Returns false if this rank's order contradicts that.
  [[nodiscard]] bool conclude() {
    if (!order_ || order_->concluded()) return true;
    reason_ = "all its rounds have run";
    return order_->conclude();
  }
  uint32_t epochs() const { return epochs_; }

  // ---- Optimistic order ----
  // How many positions this rank had begun when it froze; to be sent to the root once.
  bool owes_frozen_count() const {
    return order_ && order_->optimistic() && order_->frozen() && !order_->concluded() && !frozen_count_sent_;
  }
  std::optional<uint64_t> take_frozen_count() {
    if (!owes_frozen_count()) return std::nullopt;
    frozen_count_sent_ = true;
    return order_->begun();
  }
  [[nodiscard]] bool resume(Frozen counts) { return order_ && frozen_count_sent_ && order_->resume(counts); }
  void finish() { order_->finish(); }
  // Takes the entries of a dropped position, to be sent again.
  void take_back(std::vector<std::optional<Entry>> entries) {
    for (auto& entry : entries) {
      if (entry) negotiate(std::move(*entry));
    }
  }
  // Ends the order once nothing of it will begin any more; returns whether it did. What remains is to be sent again.
  bool finish_leaving() {
    if (!order_ || !order_->left()) return false;
    order_.reset();
    std::vector<Negotiated*> behind = std::exchange(unsent_, {});
    for (Entry& entry : empty_places()) negotiate(std::move(entry));
    unsent_.insert(unsent_.end(), behind.begin(), behind.end());
    dissolve_groups();
    return true;
  }

  // Calls `visit` with the entries that have not begun, at most `most` of them. Returns how many there are.
  template <typename Visit>
  std::size_t visit_waiting(std::size_t most, const Visit& visit) const {
    std::size_t count = 0;
    const auto take = [&](const Entry& entry) {
      if (count++ < most) visit(entry);
    };
    for (const auto& [name, negotiated] : negotiated_) take(negotiated.entry);
    for (const auto& bucket : places_) {
      for (const auto& entry : bucket) {
        if (entry) take(*entry);
      }
    }
    return count;
  }

  bool empty() const { return negotiated_.empty() && (!order_ || order_->waiting() == 0); }
  // Takes everything that has not begun, and ends the order.
  std::vector<Entry> take_all() {
    std::vector<Entry> all = empty_places();
    for (auto& [name, one] : std::exchange(negotiated_, {})) all.push_back(std::move(one.entry));
    for (Refused& one : std::exchange(refused_, {})) all.push_back(std::move(one.entry));
    order_.reset();
    unsent_.clear();
    late_.clear();
    return all;
  }

 private:
  struct Negotiated {
    Entry entry;
    bool sent = false;
  };

  void negotiate(Entry entry) {
    if (!late_.empty() && refuse(entry)) return;
    std::string name = entry.request.name;
    const auto [added, is_new] = negotiated_.try_emplace(std::move(name), Negotiated{std::move(entry)});
    FDL_CHECK(is_new);
    unsent_.push_back(&added->second);
  }
  // A rank that joins does not submit what it has missed.
  bool refuse(Entry& entry) {
    const auto found = late_.find(entry.request.name);
    if (found == late_.end()) {
      if (entry.request.kind == RequestKind::join) late_.clear();
      return false;
    }
    refused_.push_back({std::move(entry), std::move(found->second.front())});
    found->second.pop_front();
    if (found->second.empty()) late_.erase(found);
    return true;
  }
  bool has_joined() const {
    return std::any_of(negotiated_.begin(), negotiated_.end(),
                       [](const auto& one) { return one.second.entry.request.kind == RequestKind::join; });
  }
  // Ranks submit a group whole. If some of its members have run or were refused, the rest (the same on all ranks)
  // becomes ungrouped, because the root would otherwise wait for the whole group.
  void dissolve_groups() {
    std::unordered_map<std::string_view, int32_t> members;
    for (const Negotiated* negotiated : unsent_) ++members[negotiated->entry.request.group];
    std::vector<Request*> alone;
    for (Negotiated* negotiated : unsent_) {
      Request& request = negotiated->entry.request;
      if (members[request.group] < request.group_size) alone.push_back(&request);
    }
    for (Request* request : alone) {
      request->group.clear();
      request->group_size = 0;
    }
  }
  void put(LockedOrder::Place place, Entry entry) { places_[place.bucket][place.index].emplace(std::move(entry)); }
  std::vector<Entry> empty_places() {
    std::vector<Entry> entries;
    for (auto& bucket : std::exchange(places_, {})) {
      for (auto& entry : bucket) {
        if (entry) entries.push_back(std::move(*entry));
      }
    }
    return entries;
  }

  int rank_;
  int size_;
  std::vector<bool> departed_;
  std::unordered_map<std::string, Negotiated> negotiated_;
  std::vector<Negotiated*>
      unsent_;  // not sent yet, in the order of submission; points into negotiated_, whose nodes never move
  std::unordered_map<std::string, std::deque<std::shared_ptr<const Bucket>>> late_;  // failed without this rank's entry
  std::vector<Refused> refused_;
  std::unique_ptr<LockedOrder> order_;
  std::vector<std::vector<std::optional<Entry>>> places_;  // by bucket, then by tensor
  std::string reason_;
  bool frozen_count_sent_ = false;
  uint32_t epochs_ = 0;
};

}  // namespace fdl
