// Request and Plan: names of kinds, counts of elements, and searches by name.
#include "agree/negotiation/message.h"

#include <algorithm>
#include <numeric>

#include "base/bytes.h"

namespace fdl {

std::string_view name_of(RequestKind kind) {
  switch (kind) {
    case RequestKind::allreduce:
      return "allreduce";
    case RequestKind::allgather:
      return "allgather";
    case RequestKind::broadcast:
      return "broadcast";
    case RequestKind::alltoall:
      return "alltoall";
    case RequestKind::reduce_scatter:
      return "reduce_scatter";
    case RequestKind::barrier:
      return "barrier";
    case RequestKind::join:
      return "join";
  }
  return "unknown";
}

std::string title_of(RequestKind kind, const std::string& name) {
  return std::string(name_of(kind)) + " '" + name + "'";
}

int64_t Request::element_count() const {
  int64_t count = 1;
  for (const int64_t dimension : shape) count *= dimension;
  return count;
}

std::size_t Request::byte_count() const { return static_cast<std::size_t>(element_count()) * size_of(dtype); }

std::size_t Request::message_bytes() const {
  constexpr std::size_t kTable = 192;  // its numbers, the table that lists them, and the padding of its vectors
  return kTable + name.size() + group.size() + (shape.size() + splits.size()) * sizeof(int64_t);
}

std::size_t Bucket::place_bytes(std::size_t index) const {
  const std::size_t bytes = static_cast<std::size_t>(element_counts[index]) * size_of(dtype);
  if (compression != Compression::none) return round_up(bytes, kBlockElements * size_of(dtype));
  return device < 0 ? bytes : round_up(bytes, 16);
}

std::size_t Bucket::packed_element_count() const {
  if (names.size() < 2 || compression == Compression::none) return element_count();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < names.size(); ++i) bytes += place_bytes(i);
  return bytes / size_of(dtype);
}

std::size_t Bucket::element_count() const {
  return static_cast<std::size_t>(std::accumulate(element_counts.begin(), element_counts.end(), int64_t{0}));
}

std::size_t Bucket::byte_count() const { return element_count() * size_of(dtype); }

const Bucket* Plan::find(std::string_view name) const {
  const auto has_name = [&](const Bucket& bucket) {
    return std::ranges::find(bucket.names, name) != bucket.names.end();
  };
  const auto found = std::ranges::find_if(buckets, has_name);
  return found == buckets.end() ? nullptr : &*found;
}

std::string Plan::error(std::string_view name) const {
  const Bucket* bucket = find(name);
  return bucket == nullptr ? std::string() : bucket->error;
}

}  // namespace fdl
