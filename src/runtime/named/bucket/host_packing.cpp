// HostPacking keeps the index of the next tensor and its offset.
#include "runtime/named/bucket/host_packing.h"

#include <cstring>

namespace fdl {

bool HostPacking::pack_next() {
  const std::size_t bytes = bytes_of_next();
  if (!entries_[next_]) {
    std::memset(buffer_ + offset_, 0, bytes);
  } else if (bytes > 0) {
    std::memcpy(buffer_ + offset_, entries_[next_]->input, bytes);
  }
  return step(bytes);
}

bool HostPacking::unpack_next() {
  const std::size_t bytes = bytes_of_next();
  if (entries_[next_] && bytes > 0) std::memcpy(entries_[next_]->result().data, buffer_ + offset_, bytes);
  return step(bytes);
}

std::size_t HostPacking::bytes_of_next() const {
  return static_cast<std::size_t>(bucket_.element_counts[next_]) * size_of(bucket_.dtype);
}

bool HostPacking::step(std::size_t bytes) {
  offset_ += bytes;
  if (++next_ < entries_.size()) return false;
  next_ = 0;
  offset_ = 0;
  return true;
}

}  // namespace fdl
