// Failures: what XLA's error cannot carry. XLA passes a code and a text to Python. The other fields of fdl_error are
// kept here, and Python finds them by the text.
#pragma once

#include <farandole/farandole.h>

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>

namespace farandole_jax {

struct Failure {
  fdl_result code = FDL_OK;
  int culprit_rank = -1;
  std::string text, culprit_host, operation, phase, group;

  // A copy of fdl_last_error().
  static Failure last();
  static Failure of(fdl_result code, std::string text);
};

class Failures {
 public:
  static Failures& instance();
  void add(Failure failure);
  // Copies failure `index`, 0 being the newest, as its fields in one text separated by the character 31. Copies what
  // fits and returns the size of the whole text with its final 0; 0 if there are not so many failures.
  std::size_t describe(std::size_t index, char* text, std::size_t capacity);

 private:
  static constexpr std::size_t kKept = 16;
  std::mutex mutex_;
  std::deque<Failure> newest_first_;  // guarded by mutex_
};

}  // namespace farandole_jax
