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
  // Padding contributes zeros.
  if (const std::size_t place = place_of_next(); place > bytes) {
    std::memset(buffer_ + next_.offset() + bytes, 0, place - bytes);
  }
  return next_.move_past(place_of_next(), entries_.size());
}

bool HostPacking::unpack_next() {
  const std::size_t bytes = bytes_of_next();
  const auto& entry = entries_[next_.index()];
  if (entry && bytes > 0) std::memcpy(entry->result().data, buffer_ + next_.offset(), bytes);
  return next_.move_past(place_of_next(), entries_.size());
}

// A single tensor has no padding; see Bucket::packed_element_count().
std::size_t HostPacking::place_of_next() const {
  return entries_.size() == 1 ? bytes_of_next() : bucket_.place_bytes(next_.index());
}

std::size_t HostPacking::bytes_of_next() const {
  return static_cast<std::size_t>(bucket_.element_counts[next_.index()]) * size_of(bucket_.dtype);
}

}  // namespace fdl
