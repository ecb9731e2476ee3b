// HostPacking copies one tensor for each call.
#include "runtime/named/bucket/host_packing.h"

#include <cstring>

namespace fdl {

bool HostPacking::pack_next() {
  const std::size_t bytes = bytes_of_next();
  const auto& entry = entries_[next_.index()];
  if (!entry) {
    std::memset(buffer_ + next_.offset(), 0, bytes);
  } else if (bytes > 0) {
    std::memcpy(buffer_ + next_.offset(), entry->input, bytes);
  }
  return next_.move_past(bytes, entries_.size());
}

bool HostPacking::unpack_next() {
  const std::size_t bytes = bytes_of_next();
  const auto& entry = entries_[next_.index()];
  if (entry && bytes > 0) std::memcpy(entry->result().data, buffer_ + next_.offset(), bytes);
  return next_.move_past(bytes, entries_.size());
}

std::size_t HostPacking::bytes_of_next() const {
  return static_cast<std::size_t>(bucket_.element_counts[next_.index()]) * size_of(bucket_.dtype);
}

}  // namespace fdl
