// The size of a Store is bounded, and its facts never change. Those of a set-up are dropped when all have read them.
#include "bootstrap/rendezvous/store.h"

#include <fmt/core.h>

namespace fdl {

Result<std::vector<Store::Reader>> Store::publish(int rank, const std::string& key, std::string value,
                                                  int64_t most_reads) {
  if (const auto found = facts_.find(key); found != facts_.end()) {
    if (found->second.value == value) return std::vector<Reader>();
    return Status(Code::invalid_argument,
                  fmt::format("rank {1} already published '{0}' with another value", key, found->second.rank));
  }
  const std::size_t bytes = key.size() + value.size();
  if (bytes > most_bytes_ - bytes_) {
    return Status(Code::resource,
                  fmt::format("the coordinator's store is full: {} of {} bytes are taken, and '{}' needs {}", bytes_,
                              most_bytes_, key, bytes));
  }
  bytes_ += bytes;
  facts_.emplace(key, Fact{rank, std::move(value), most_reads});
  std::vector<Reader> readers;
  const auto [first, last] = readers_.equal_range(key);
  for (auto reader = first; reader != last; ++reader) readers.push_back(reader->second);
  readers_.erase(first, last);
  return readers;
}

const std::string* Store::fetch(const std::string& key, Reader reader) {
  if (const std::string* value = find(key)) return value;
  readers_.emplace(key, reader);
  return nullptr;
}

const std::string* Store::find(const std::string& key) const {
  const auto found = facts_.find(key);
  return found == facts_.end() ? nullptr : &found->second.value;
}

void Store::note_reads(const std::string& key, std::size_t reads) {
  const auto found = facts_.find(key);
  if (found == facts_.end() || found->second.reads_left == 0) return;
  found->second.reads_left -= static_cast<int64_t>(reads);
  if (found->second.reads_left > 0) return;
  bytes_ -= key.size() + found->second.value.size();
  facts_.erase(found);
}

void Store::forget(Reader reader) {
  std::erase_if(readers_,
                [&](const auto& one) { return one.second.peer == reader.peer && one.second.id == reader.id; });
}

void Store::forget_all_of(uint64_t peer) {
  std::erase_if(readers_, [&](const auto& one) { return one.second.peer == peer; });
}

}  // namespace fdl
