// DevicePacking computes the elements of each tensor that belong to a round.
#include "runtime/device/device_packing.h"

#include <algorithm>

#include "base/bytes.h"

namespace fdl {
namespace {

// Where the next tensor begins, behind one that ends before element `end`. The sizes of all types are powers of two.
std::size_t next_begin(std::size_t end, Dtype dtype) {
  constexpr std::size_t kAccess = 16;
  return round_up(end, std::max<std::size_t>(kAccess / size_of(dtype), 1));
}

}  // namespace

std::size_t DevicePacking::elements_of(std::span<const int64_t> counts, Dtype dtype) {
  std::size_t end = 0;
  for (const int64_t count : counts) end = next_begin(end, dtype) + static_cast<std::size_t>(count);
  return end;
}

DevicePacking::DevicePacking(std::vector<Tensor> tensors, Dtype dtype, Scratch scratch, Factors factors)
    : tensors_(std::move(tensors)), dtype_(dtype), scratch_(scratch), factors_(factors) {
  for (const Tensor& tensor : tensors_) total_ = next_begin(total_, dtype) + tensor.count;
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
    begin = next_begin(begin, dtype_);
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
