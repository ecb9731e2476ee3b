// TensorCursor is a position in the tensors of a bucket, which lie side by side in one buffer.
#pragma once

#include <cstddef>

namespace fdl {

class TensorCursor {
 public:
  // The index of the current tensor, and its offset in the buffer in bytes.
  std::size_t index() const { return index_; }
  std::size_t offset() const { return offset_; }

  // Moves past the current tensor of `bytes`. Returns whether it was the last of `tensor_count`; the cursor is then at
  // the first one again.
  bool move_past(std::size_t bytes, std::size_t tensor_count) {
    offset_ += bytes;
    if (++index_ < tensor_count) return false;
    *this = {};
    return true;
  }

 private:
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
};

}  // namespace fdl
