// SharedExchange: an Exchange in memory that threads share, and processes that are forked after it was made.
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
    void* memory = ::mmap(nullptr, sizeof(FakeFlags), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FDL_CHECK(memory != MAP_FAILED);
    readiness_flags_ = new (memory) FakeFlags;
    pthread_mutexattr_t mutex_kind;
    pthread_mutexattr_init(&mutex_kind);
    pthread_mutexattr_setpshared(&mutex_kind, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&readiness_flags_->mutex, &mutex_kind);
    pthread_condattr_t condition_kind;
    pthread_condattr_init(&condition_kind);
    pthread_condattr_setpshared(&condition_kind, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&condition_kind, CLOCK_MONOTONIC);
    pthread_cond_init(&readiness_flags_->published, &condition_kind);
  }
  ~SharedExchange() override { ::munmap(readiness_flags_, sizeof(FakeFlags)); }
  SharedExchange(const SharedExchange&) = delete;
  SharedExchange& operator=(const SharedExchange&) = delete;

  Status publish(std::string_view key, std::string_view value) override {
    FDL_CHECK(key.size() < sizeof(Note::key) && value.size() < sizeof(Note::value));
    pthread_mutex_lock(&readiness_flags_->mutex);
    FDL_CHECK(readiness_flags_->count < readiness_flags_->notes.size());
    Note& note = readiness_flags_->notes[readiness_flags_->count++];
    std::memcpy(note.key, key.data(), key.size());
    std::memcpy(note.value, value.data(), value.size());
    note.value_bytes = value.size();
    pthread_cond_broadcast(&readiness_flags_->published);
    pthread_mutex_unlock(&readiness_flags_->mutex);
    return {};
  }

  Result<std::string> fetch(std::string_view key, Deadline deadline) override {
    pthread_mutex_lock(&readiness_flags_->mutex);
    const Note* note = find(key);
    while (note == nullptr && !deadline.passed()) {
      // For ever is an hour here: a test that waits longer is broken.
      const int64_t until = now_ns() + std::min<int64_t>(deadline.remaining_ns(), 3'600'000'000'000);
      const timespec moment{static_cast<time_t>(until / 1'000'000'000), static_cast<long>(until % 1'000'000'000)};
      pthread_cond_timedwait(&readiness_flags_->published, &readiness_flags_->mutex, &moment);
      note = find(key);
    }
    const std::string value = note == nullptr ? "" : std::string(note->value, note->value_bytes);
    pthread_mutex_unlock(&readiness_flags_->mutex);
    if (note == nullptr) return Status(Code::timeout, "nobody published " + std::string(key));
    return value;
  }

 private:
  struct Note {
    char key[128] = {};
    char value[1024] = {};
    std::size_t value_bytes = 0;
  };
  struct FakeFlags {
    pthread_mutex_t mutex;
    pthread_cond_t published;
    std::size_t count = 0;
    std::array<Note, 128> notes;
  };

  const Note* find(std::string_view key) const {
    for (std::size_t i = 0; i < readiness_flags_->count; ++i) {
      if (readiness_flags_->notes[i].key == key) return &readiness_flags_->notes[i];
    }
    return nullptr;
  }

  FakeFlags* readiness_flags_;
};

}  // namespace fdl::test
