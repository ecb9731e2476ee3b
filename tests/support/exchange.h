// SharedExchange is an Exchange in memory that is shared by threads, and by processes that are forked after it was
// made.
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <ctime>
#include <new>

#include "contract/membership.h"

namespace fdl::test {

class SharedExchange final : public Exchange {
 public:
  SharedExchange() {
    void* memory = ::mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FDL_CHECK(memory != MAP_FAILED);
    shared_ = new (memory) Notes;
    pthread_mutexattr_t mutex_kind;
    pthread_mutexattr_init(&mutex_kind);
    pthread_mutexattr_setpshared(&mutex_kind, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared_->mutex, &mutex_kind);
    pthread_condattr_t condition_kind;
    pthread_condattr_init(&condition_kind);
    pthread_condattr_setpshared(&condition_kind, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&condition_kind, CLOCK_MONOTONIC);
    pthread_cond_init(&shared_->published, &condition_kind);
  }
  ~SharedExchange() override { ::munmap(shared_, sizeof(Notes)); }
  SharedExchange(const SharedExchange&) = delete;
  SharedExchange& operator=(const SharedExchange&) = delete;

  Status publish(std::string_view key, std::string_view value) override { return publish_for(0, key, value); }
  Status publish_for(int readers, std::string_view key, std::string_view value) override {
    FDL_CHECK(key.size() < sizeof(Note::key) && value.size() < sizeof(Note::value));
    pthread_mutex_lock(&shared_->mutex);
    FDL_CHECK(shared_->count < shared_->notes.size());
    Note& note = shared_->notes[shared_->count++];
    std::memcpy(note.key, key.data(), key.size());
    std::memcpy(note.value, value.data(), value.size());
    note.value_bytes = value.size();
    note.reads_left = readers;
    pthread_cond_broadcast(&shared_->published);
    pthread_mutex_unlock(&shared_->mutex);
    return {};
  }

  Result<std::string> fetch(std::string_view key, Deadline deadline) override {
    pthread_mutex_lock(&shared_->mutex);
    Note* note = find(key);
    while (note == nullptr && !deadline.passed()) {
      // A wait without a deadline ends after an hour: a test that waits longer is broken.
      const int64_t until = now_ns() + std::min<int64_t>(deadline.remaining_ns(), 3'600'000'000'000);
      const timespec moment{static_cast<time_t>(until / 1'000'000'000), static_cast<long>(until % 1'000'000'000)};
      pthread_cond_timedwait(&shared_->published, &shared_->mutex, &moment);
      note = find(key);
    }
    if (note != nullptr && note->reads_left > 0 && --note->reads_left == 0 && drops_) note->key[0] = '\0';
    pthread_mutex_unlock(&shared_->mutex);
    if (note == nullptr) return Status(Code::timeout, "no rank published " + std::string(key));
    return std::string(note->value, note->value_bytes);  // a value never changes
  }

  // From now on facts are dropped when they have been read as often as was said, as the coordinator does. A read too
  // many then waits in vain.
  void drop_read_facts() { drops_ = true; }

  // Facts that have been read less often than was said.
  int unread_facts() {
    pthread_mutex_lock(&shared_->mutex);
    int unread = 0;
    for (std::size_t i = 0; i < shared_->count; ++i) unread += shared_->notes[i].reads_left > 0 ? 1 : 0;
    pthread_mutex_unlock(&shared_->mutex);
    return unread;
  }

 private:
  struct Note {
    char key[128] = {};
    char value[1024] = {};
    std::size_t value_bytes = 0;
    int reads_left = 0;  // 0: no limit
  };
  struct Notes {
    pthread_mutex_t mutex;
    pthread_cond_t published;
    std::size_t count = 0;
    std::array<Note, 128> notes;
  };

  Note* find(std::string_view key) {
    for (std::size_t i = 0; i < shared_->count; ++i) {
      if (shared_->notes[i].key == key) return &shared_->notes[i];
    }
    return nullptr;
  }

  Notes* shared_;
  bool drops_ = false;
};

// The exchange of a test, for those that own theirs.
class ExchangeOf final : public Exchange {
 public:
  explicit ExchangeOf(Exchange& exchange) : exchange_(exchange) {}
  Status publish(std::string_view key, std::string_view value) override { return exchange_.publish(key, value); }
  Result<std::string> fetch(std::string_view key, Deadline deadline) override { return exchange_.fetch(key, deadline); }

 private:
  Exchange& exchange_;
};

}  // namespace fdl::test
