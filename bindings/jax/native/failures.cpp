// Keeps the newest failures of compiled programs, which Python looks up.
#include "failures.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace farandole_jax {

Failure Failure::last() {
  const fdl_error& error = *fdl_last_error();
  return {error.code, error.culprit_rank, error.text, error.culprit_host, error.operation, error.phase, error.group};
}

Failure Failure::of(fdl_result code, std::string text) {
  Failure failure;
  failure.code = code;
  failure.text = std::move(text);
  return failure;
}

Failures& Failures::instance() {
  static auto* failures = new Failures;  // leaked on purpose, as the groups
  return *failures;
}

void Failures::add(Failure failure) {
  const std::lock_guard lock(mutex_);
  newest_first_.push_front(std::move(failure));
  if (newest_first_.size() > kKept) newest_first_.pop_back();
}

std::size_t Failures::describe(std::size_t index, char* text, std::size_t capacity) {
  const std::lock_guard lock(mutex_);
  if (index >= newest_first_.size()) return 0;
  const Failure& failure = newest_first_[index];
  constexpr char kSeparator = '\x1f';
  std::string all = fdl_result_name(failure.code);
  for (const std::string& field : {failure.text, std::to_string(failure.culprit_rank), failure.culprit_host,
                                   failure.operation, failure.phase, failure.group}) {
    all += kSeparator;
    all += field;
  }
  if (capacity > 0) {
    const std::size_t copied = std::min(all.size(), capacity - 1);
    std::memcpy(text, all.data(), copied);
    text[copied] = '\0';
  }
  return all.size() + 1;
}

}  // namespace farandole_jax
