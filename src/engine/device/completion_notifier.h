// CompletionNotifier lends an Event that a device's stream rings when queued work has run.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "system/event.h"

namespace fdl {

// A stream may ring long after the collective that requested it was abandoned. The events therefore come from a store
// that never destroys one: a late ring at most wakes the event's next owner once without need. take() and the
// destructor may run on any thread.
class CompletionNotifier {
 public:
  static Result<CompletionNotifier> take() {
    Store& store = the_store();
    MutexLock lock(store.mutex);
    if (store.free.empty()) {
      FDL_ASSIGN_OR_RETURN(Event made, Event::make());
      store.all.push_back(std::make_unique<Event>(std::move(made)));
      store.free.push_back(store.all.back().get());
    }
    CompletionNotifier notifier(store.free.back());
    store.free.pop_back();
    return notifier;
  }
  CompletionNotifier(CompletionNotifier&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CompletionNotifier& operator=(CompletionNotifier&&) = delete;
  ~CompletionNotifier() {
    if (event_ == nullptr) return;
    Store& store = the_store();
    MutexLock lock(store.mutex);
    store.free.push_back(event_);
  }

  const Event& event() const { return *event_; }
  int fd() const { return event_->fd(); }
  void clear() const { event_->clear(); }

 private:
  struct Store {
    Mutex mutex;
    std::vector<std::unique_ptr<Event>> all FDL_GUARDED_BY(mutex);
    std::vector<const Event*> free FDL_GUARDED_BY(mutex);
  };
  static Store& the_store() {
    static auto* store = new Store;  // intentionally leaked: devices' threads may ring while the process exits
    return *store;
  }
  explicit CompletionNotifier(const Event* event) : event_(event) {}

  const Event* event_;
};

}  // namespace fdl
