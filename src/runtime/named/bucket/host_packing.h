// HostPacking copies the tensors of a fused bucket into the fusion buffer, where they lie side by side, and the results
// out of it, one tensor for each call.
//
// All tensors are packed before the first one is unpacked. A tensor that this rank does not have contributes zeros and
// receives no output.
#pragma once

#include <cstddef>

#include "agree/negotiation/message.h"
#include "runtime/named/bucket/tensor_cursor.h"
#include "runtime/named/entry.h"

namespace fdl {

class HostPacking {
 public:
  // The buffer has space for all tensors of `bucket`. The results of the entries have been made. Everything outlives
  // this object.
  HostPacking(const Bucket& bucket, const Entries& entries, std::byte* buffer)
      : bucket_(bucket), entries_(entries), buffer_(buffer) {}

  std::byte* buffer() const { return buffer_; }
  // Each returns whether it has copied the last tensor. The next call then begins again with the first one.
  bool pack_next();
  bool unpack_next();

 private:
  std::size_t bytes_of_next() const;
  std::size_t place_of_next() const;

  const Bucket& bucket_;
  const Entries& entries_;
  std::byte* const buffer_;
  TensorCursor next_;
};

}  // namespace fdl
