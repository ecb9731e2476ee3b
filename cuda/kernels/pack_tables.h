// for_each_table() spreads the segments of a packing over the tables of as many launches as are needed.
#pragma once

#include <algorithm>
#include <span>

#include "contract/device.h"
#include "cuda/kernels/pack_math.h"

namespace fdl::cuda {

// A request to pack many tensors into one vector, or to unpack them from it.
struct Packing {
  std::span<const DeviceSegment> segments;
  Dtype tensors;
  std::byte* packed;
  Dtype in_packed;
  bool unpacks;
  double factor;

  // Whether bytes move unchanged.
  bool is_copy() const { return tensors == in_packed && (factor == 1.0 || kind_of(tensors) == DtypeKind::logical); }
};

// There are enough blocks for every existing device, and tiles are so large that the search for a tile's segment costs
// little.
inline constexpr uint64_t kBlocksWanted = 2048;
inline constexpr uint64_t kLeastTileBytes = 4096;
inline constexpr uint64_t kMostTileBytes = 65536;
inline constexpr uint64_t kMostElements = uint64_t{1}
                                          << 30;  // of one segment of a table; a multiple of every vector size

// Elements of a tile, so that all elements give about kBlocksWanted tiles. `unit_bytes` is the size of the larger
// element.
inline uint32_t tile_elements(uint64_t all_elements, unsigned unit_bytes) {
  const uint64_t requested = all_elements * unit_bytes / kBlocksWanted;
  const uint64_t bytes = std::clamp((requested + kLeastTileBytes - 1) / kLeastTileBytes * kLeastTileBytes,
                                    kLeastTileBytes, kMostTileBytes);
  return static_cast<uint32_t>(bytes / unit_bytes);
}

// Fills tables segment by segment and launches each full one. For a copy all counts are bytes.
template <class Launch>
class TableWriter {
 public:
  TableWriter(const Packing& packing, const Launch& launch)
      : packing_(packing),
        launch_(launch),
        as_bytes_(packing.is_copy()),
        tensor_size_(as_bytes_ ? 1 : static_cast<unsigned>(size_of(packing.tensors))),
        packed_size_(as_bytes_ ? 1 : static_cast<unsigned>(size_of(packing.in_packed))) {
    uint64_t elements = 0;
    for (const DeviceSegment& segment : packing.segments) elements += segment.count * scale();
    table_.scaling = scaling_of(packing.factor);
    table_.tensors = packing.tensors;
    table_.in_packed = packing.in_packed;
    table_.unpacks = packing.unpacks;
    table_.tile_elements = tile_elements(elements, std::max(tensor_size_, packed_size_));
  }

  Status add(const DeviceSegment& segment) {
    if (packing_.unpacks && segment.tensor == nullptr) return ok_status();
    const uint64_t all = segment.count * scale();
    for (uint64_t done = 0; done < all; done += kMostElements) {
      auto* const tensor = static_cast<std::byte*>(segment.tensor);
      FDL_RETURN_IF_ERROR(add_part(tensor == nullptr ? nullptr : tensor + done * tensor_size_,
                                   segment.first * scale() + done, std::min(kMostElements, all - done)));
    }
    return ok_status();
  }

  Status finish() {
    if (table_.segment_count == 0) return ok_status();
    Status launched = launch_(table_);
    table_.segment_count = 0;
    table_.tile_count = 0;
    return launched;
  }

 private:
  // Units of a table per element of a segment.
  std::size_t scale() const { return as_bytes_ ? size_of(packing_.tensors) : 1; }

  // A table has 32-bit offsets from base_, so it also ends where a segment is too far from its first one.
  Status add_part(std::byte* tensor, uint64_t first, uint64_t count) {
    const bool fits = table_.segment_count < kMostSegments && first >= base_ && first - base_ <= UINT32_MAX;
    if (table_.segment_count > 0 && !fits) FDL_RETURN_IF_ERROR(finish());
    if (table_.segment_count == 0) {
      base_ = first;
      table_.packed = packing_.packed + base_ * packed_size_;
    }
    const uint32_t i = table_.segment_count++;
    table_.tensor[i] = tensor;
    table_.first[i] = static_cast<uint32_t>(first - base_);
    table_.count[i] = static_cast<uint32_t>(count);
    table_.first_tile[i] = table_.tile_count;
    table_.tile_count += tiles_of_segment(table_, i, as_bytes_);
    return ok_status();
  }

  const Packing& packing_;
  const Launch& launch_;
  const bool as_bytes_;
  const unsigned tensor_size_, packed_size_;
  uint64_t base_ = 0;  // the packed position to which the table's offsets refer
  PackTable table_{};
};

// Passes each table that the segments fill to `launch`: Status launch(const PackTable&). Stops at the first error.
template <class Launch>
Status for_each_table(const Packing& packing, const Launch& launch) {
  TableWriter<Launch> writer(packing, launch);
  for (const DeviceSegment& segment : packing.segments) FDL_RETURN_IF_ERROR(writer.add(segment));
  return writer.finish();
}

}  // namespace fdl::cuda
