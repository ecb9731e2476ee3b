// Store: small facts that are published once, and who waits for which.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace fdl {

class Store {
 public:
  struct Reader {
    uint64_t peer;
    uint64_t id;
  };

  explicit Store(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  // Who waited for it. Publishing the same value again is no error, another value is.
  Result<std::vector<Reader>> publish(int rank, const std::string& key, std::string value);
  // Nothing: the reader waits from now on.
  const std::string* fetch(const std::string& key, Reader reader);
  void forget(Reader reader);
  void forget_all_of(uint64_t peer);

 private:
  struct Fact {
    int rank;
    std::string value;
  };

  std::size_t most_bytes_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::string, Fact> facts_;
  std::unordered_multimap<std::string, Reader> readers_;
};

}  // namespace fdl
