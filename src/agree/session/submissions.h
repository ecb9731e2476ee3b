// Submissions: what a rank has submitted and what has not begun yet: by name while it is negotiated, in its place while
// the order is locked.
//
// Each entry is either held by name (told to the root, or to be told), or in its place of the locked order; it leaves
// by take() or begin(), once. When an order is locked, everything held is put into its place; when the order is left,
// everything in a place is held again and to be told. While an order is being left nothing is told.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agree/order/locked_order.h"

namespace fdl {

// An Entry has a `request`, and its name is that of no other entry that is here.
template <typename Entry>
class Submissions {
 public:
  // A bucket that begins, with this rank's part of it.
  struct Begun {
    std::shared_ptr<const Bucket> bucket;
    std::vector<std::optional<Entry>> entries;
    // Of a blind order: it may turn out that not all have begun it; and whether this rank begins it with zeros.
    bool provisional = false;
    bool hollow = false;
  };

  Submissions(int rank, int size) : rank_(rank), size_(size), departed_(static_cast<std::size_t>(size), false) {}

  void submit(Entry entry) {
    if (order_ && !order_->frozen()) {
      if (const auto place = order_->submit(entry.request)) return put(*place, std::move(entry));
      leave(entry.request.name);
    }
    hold(std::move(entry));
  }

  // ---- negotiated ----
  bool has_untold() const { return !untold_.empty() && !order_; }
  // What the root is to be told, valid until the next call of anything here.
  std::vector<const Request*> tell() {
    std::vector<const Request*> requests;
    requests.reserve(untold_.size());
    for (Held* held : untold_) {
      held->told = true;
      requests.push_back(&held->entry.request);
    }
    untold_.clear();
    return requests;
  }
  // This rank's part of a bucket of a plan. What the root was not told of is not meant.
  std::vector<std::optional<Entry>> take(const Bucket& bucket) {
    std::vector<std::optional<Entry>> entries(bucket.names.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto found = held_.find(bucket.names[i]);
      if (found == held_.end() || !found->second.told) continue;
      entries[i] = std::move(found->second.entry);
      held_.erase(found);
    }
    return entries;
  }

  // ---- locked ----
  const LockedOrder* order() const { return order_.get(); }
  // Why the order was left, or is about to be.
  const std::string& reason() const { return reason_; }

  // From here on `buckets` are run again and again. The root has forgotten what it was told and did not decide.
  void lock(std::vector<Bucket> buckets, const LockedOrder::Known& known, bool optimistic = false) {
    FDL_CHECK(!order_);
    reason_.clear();
    told_frozen_ = false;
    order_ = std::make_unique<LockedOrder>(++epochs_, rank_, size_, std::move(buckets), known, optimistic);
    places_.clear();
    for (const auto& bucket : order_->buckets()) places_.emplace_back(bucket->names.size());
    for (int rank = 0; rank < size_; ++rank) {
      if (departed_[static_cast<std::size_t>(rank)]) order_->depart(rank);
    }
    if (order_->frozen()) reason_ = "a rank has left";
    untold_.clear();
    auto held = std::exchange(held_, {});
    for (auto& [name, one] : held) submit(std::move(one.entry));
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
  void look(const WordOf& word_of) {
    const bool was_frozen = order_->frozen();
    order_->look(word_of);
    if (!was_frozen && order_->frozen()) reason_ = "another rank met something unexpected";
  }
  std::optional<Begun> begin() {
    const auto start = order_->begin();
    if (!start) return std::nullopt;
    const auto& bucket = order_->buckets()[start->bucket];
    std::vector<std::optional<Entry>> entries(bucket->names.size());
    if (!start->hollow) entries.swap(places_[start->bucket]);
    return Begun{bucket, std::move(entries), order_->optimistic(), start->hollow};
  }

  // ---- blind ----
  // How many positions this rank had begun when it froze: the root is to be told, once.
  bool owes_frozen() const { return order_ && order_->optimistic() && order_->frozen() && !told_frozen_; }
  std::optional<uint64_t> tell_frozen() {
    if (!owes_frozen()) return std::nullopt;
    told_frozen_ = true;
    return order_->begun();
  }
  [[nodiscard]] bool resume(Frozen counts) { return order_ && told_frozen_ && order_->resume(counts); }
  void finish() { order_->finish(); }
  // What was begun and came to nothing: it is to be told again.
  void take_back(std::vector<std::optional<Entry>> entries) {
    for (auto& entry : entries) {
      if (entry) hold(std::move(*entry));
    }
  }
  // Ends the order once nothing of it will begin any more; true if it did. What is left is to be told again.
  bool finish_leaving() {
    if (!order_ || !order_->left()) return false;
    order_.reset();
    std::vector<Held*> behind = std::exchange(untold_, {});
    for (Entry& entry : empty_places()) hold(std::move(entry));
    untold_.insert(untold_.end(), behind.begin(), behind.end());
    dissolve_groups();
    return true;
  }

  bool empty() const { return held_.empty() && (!order_ || order_->waiting() == 0); }
  // Everything that has not begun.
  std::vector<Entry> take_all() {
    std::vector<Entry> all = empty_places();
    for (auto& [name, held] : std::exchange(held_, {})) all.push_back(std::move(held.entry));
    order_.reset();
    untold_.clear();
    return all;
  }

 private:
  struct Held {
    Entry entry;
    bool told = false;
  };

  void hold(Entry entry) {
    std::string name = entry.request.name;
    const auto [held, is_new] = held_.try_emplace(std::move(name), Held{std::move(entry)});
    FDL_CHECK(is_new);
    untold_.push_back(&held->second);
  }
  // A group is submitted whole. Where some of it have run, the others are left on all ranks, and no group any more.
  void dissolve_groups() {
    std::unordered_map<std::string_view, int32_t> members;
    for (const Held* held : untold_) ++members[held->entry.request.group];
    std::vector<Request*> alone;
    for (Held* held : untold_) {
      Request& request = held->entry.request;
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
  std::unordered_map<std::string, Held> held_;
  std::vector<Held*> untold_;  // in the order of submission; nodes of a map stay where they are
  std::unique_ptr<LockedOrder> order_;
  std::vector<std::vector<std::optional<Entry>>> places_;  // of each bucket
  std::string reason_;
  bool told_frozen_ = false;
  uint32_t epochs_ = 0;
};

}  // namespace fdl
