// FusionBuffer: the memory in which a bucket's tensors lie side by side; grown to need, kept for the next bucket.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "runtime/handle.h"

namespace fdl {

class FusionBuffer {
 public:
  Result<std::byte*> at_least(std::size_t bytes) {
    if (bytes > capacity_ || !memory_) {
      memory_.reset();
      memory_ = allocate_aligned(bytes);
      capacity_ = memory_ ? bytes : 0;
      if (!memory_) {
        return Status(Code::resource, "no memory for a fusion buffer of " + std::to_string(bytes) +
                                          " bytes; lower FARANDOLE_FUSION_BYTES");
      }
    }
    return static_cast<std::byte*>(memory_.get());
  }

 private:
  OwnedMemory memory_;
  std::size_t capacity_ = 0;
};

}  // namespace fdl
