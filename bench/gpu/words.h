// read_words() reads the command line of a GPU benchmark by a table of the words that it knows.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu/ending.h"

namespace gpu_bench {

struct Word {
  std::string name;
  std::function<void()> set;                     // for a word alone
  std::function<void(const std::string&)> take;  // for a word with a value behind it
};

inline Word word_alone(std::string name, std::function<void()> set) { return {std::move(name), std::move(set), {}}; }
inline Word word_with_value(std::string name, std::function<void(const std::string&)> take) {
  return {std::move(name), {}, std::move(take)};
}

// Ends the benchmark with a line that lists the known words if one is unknown or lacks its value.
inline void read_words(int count, char** given, const std::vector<Word>& known) {
  for (int i = 1; i < count; ++i) {
    const std::string word = given[i];
    const auto found = std::find_if(known.begin(), known.end(), [&](const Word& one) { return one.name == word; });
    if (found == known.end()) {
      std::string names;
      for (const Word& one : known) names += (names.empty() ? "" : ", ") + one.name;
      end(kUsage, "'" + word + "' is none of " + names);
    }
    if (found->set) {
      found->set();
    } else if (i + 1 < count) {
      found->take(given[++i]);
    } else {
      end(kUsage, word + " needs a value");
    }
  }
}

}  // namespace gpu_bench
