// DevicePacking computes the elements of each tensor that belong to a round.
#include "runtime/device/device_packing.h"

#include <algorithm>

namespace fdl {

DevicePacking::DevicePacking(std::vector<Tensor> tensors, Dtype dtype, Scratch scratch, Factors factors)
    : tensors_(std::move(tensors)), dtype_(dtype), scratch_(scratch), factors_(factors) {
  for (const Tensor& tensor : tensors_) total_ += tensor.count;
  begin_round(0);
  FDL_CHECK(count_ > 0 || total_ == 0);
}

void DevicePacking::begin_round(std::size_t from) {
  from_ = from;
  count_ = std::min(total_ - from, scratch_.bytes / size_of(dtype_));
}

// The parts of the tensors that belong to the present round. `place_of` returns a tensor's input or output, or null.
template <typename Place>
std::vector<DeviceSegment> DevicePacking::segments(const Place& place_of) const {
  std::vector<DeviceSegment> found;
  found.reserve(tensors_.size());
  std::size_t begin = 0;  // position of the tensor's first element among the elements of all tensors
  for (const Tensor& tensor : tensors_) {
    const std::size_t from = std::max(begin, from_);
    const std::size_t to = std::min(begin + tensor.count, from_ + count_);
    if (from < to) {
      auto* const place = static_cast<std::byte*>(place_of(tensor));
      found.push_back({.tensor = place == nullptr ? nullptr : place + (from - begin) * size_of(dtype_),
                       .first = from - from_,
                       .count = to - from});
    }
    begin += tensor.count;
  }
  return found;
}

Status DevicePacking::pack(Device& device, Stream stream) const {
  const auto inputs = segments([](const Tensor& tensor) { return const_cast<void*>(tensor.input); });
  return device.pack(stream, inputs, dtype_, scratch_.memory, dtype_, factors_.before);
}

Status DevicePacking::unpack(Device& device, Stream stream) {
  const auto outputs = segments([](const Tensor& tensor) { return tensor.output; });
  FDL_RETURN_IF_ERROR(device.unpack(stream, outputs, dtype_, scratch_.memory, dtype_, factors_.after));
  done_ = from_ + count_ == total_;
  if (!done_) begin_round(from_ + count_);
  return {};
}

}  // namespace fdl
