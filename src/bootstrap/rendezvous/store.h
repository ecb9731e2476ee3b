// Store keeps small facts, each published once, and the readers that wait for a fact.
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

  // Stores a fact and returns the readers that waited for it. Publishing another value for the same key is an error;
  // the same value again is not. After `most_reads` reads the fact is dropped; 0: it stays.
  Result<std::vector<Reader>> publish(int rank, const std::string& key, std::string value, int64_t most_reads);
  // Returns the value, valid until the next call. Returns null if it is unknown; the reader then waits for it.
  const std::string* fetch(const std::string& key, Reader reader);
  // Returns the value, valid until the next call. Returns null if it is unknown.
  const std::string* find(const std::string& key) const;
  // Notes that so many readers have got the value.
  void note_reads(const std::string& key, std::size_t reads);
  void forget(Reader reader);
  void forget_all_of(uint64_t peer);
  std::size_t readers() const { return readers_.size(); }  // that wait

 private:
  struct Fact {
    int rank;  // the publisher
    std::string value;
    int64_t reads_left;  // 0: it stays
  };

  std::size_t most_bytes_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::string, Fact> facts_;
  std::unordered_multimap<std::string, Reader> readers_;
};

}  // namespace fdl
