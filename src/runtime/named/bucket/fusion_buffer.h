// FusionBuffer is the host memory in which the tensors of a bucket lie side by side. It grows when a bucket needs more,
// and is kept for the next bucket.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "runtime/lifecycle/allocation.h"

namespace fdl {

class FusionBuffer {
 public:
  // `host`: memory that all ranks of the host map, or null. In such memory the collective runs without staging, so that
  // packing is the only copy.
  // `on_growth` gets the new memory, of which it may share the ownership.
  using OnGrowth = std::function<void(std::shared_ptr<void>, std::size_t bytes)>;
  explicit FusionBuffer(std::shared_ptr<HostMemory> host = nullptr, OnGrowth on_growth = {})
      : host_(std::move(host)), on_growth_(std::move(on_growth)) {}

  // Growing discards the contents and moves the buffer.
  Result<std::byte*> at_least(std::size_t bytes) {
    if (bytes > capacity_ || !memory_) {
      memory_.reset();
      capacity_ = 0;
      auto grown = allocate(host_, bytes);
      if (!grown.ok()) {
        return grown.status().while_doing("growing a fusion buffer to " + std::to_string(bytes) +
                                          " bytes; lower FARANDOLE_FUSION_BYTES");
      }
      memory_ = grown.take();
      capacity_ = bytes;
      if (on_growth_) on_growth_(memory_, bytes);
    }
    return static_cast<std::byte*>(memory_.get());
  }

 private:
  std::shared_ptr<HostMemory> host_;
  OnGrowth on_growth_;
  std::shared_ptr<void> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace fdl
