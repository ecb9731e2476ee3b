// ShmParts keeps a map of gaps that split and merge, and one bit per extent.
#include "transports/shm/memory/shm_parts.h"

#include <algorithm>

#include "base/check.h"

namespace fdl {

std::optional<ByteRange> ShmParts::take(std::size_t bytes, std::size_t unit) {
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto [gap_begin, gap_end] = *gap;
    const std::size_t begin = round_up(gap_begin, unit);
    // Subtracting avoids an overflow: `bytes` may be as large as a number gets.
    if (begin >= gap_end || bytes > gap_end - begin) continue;
    const std::size_t end = begin + round_up(std::max<std::size_t>(bytes, 1), unit);
    if (end > gap_end) continue;
    gaps_.erase(gap);
    if (gap_begin < begin) gaps_[gap_begin] = begin;
    if (end < gap_end) gaps_[end] = gap_end;
    return ByteRange{begin, end};
  }
  return std::nullopt;
}

// Adds `range` to the gaps, merges it with adjacent ones, and returns the gap that contains it.
ByteRange ShmParts::merge(ByteRange range) {
  auto next = gaps_.upper_bound(range.begin);
  // Merge with the gap that ends where the range begins.
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    FDL_CHECK(before->second <= range.begin);
    if (before->second == range.begin) {
      range.begin = before->first;
      gaps_.erase(before);
    }
  }
  // Merge with the gap that begins where the range ends.
  if (next != gaps_.end() && next->first == range.end) {
    range.end = next->second;
    gaps_.erase(next);
  }
  gaps_[range.begin] = range.end;
  return range;
}

std::vector<ByteRange> ShmParts::give_back(ByteRange range) {
  const ByteRange gap = merge(range);
  // Only extents that are free as a whole can be returned.
  const ByteRange inside{round_up(gap.begin, kExtent), gap.end / kExtent * kExtent};
  if (inside.begin >= inside.end) return {};
  std::vector<ByteRange> unused = extents(inside, true);
  std::size_t bytes = 0;
  for (const ByteRange& run : unused) bytes += run.size();
  // Returning nothing keeps them backed for the next allocation.
  if (bytes <= kKept) return {};
  for (const ByteRange& run : unused) set_backed(run, false);
  return unused;
}

std::vector<ByteRange> ShmParts::extents(ByteRange range, bool backed) const {
  std::vector<ByteRange> runs;
  const std::size_t last = (range.end + kExtent - 1) / kExtent;
  // Extents behind the end of backed_ have never been backed.
  const std::size_t end = backed ? std::min(last, backed_.size()) : last;
  for (std::size_t i = range.begin / kExtent; i < end; ++i) {
    if ((i < backed_.size() && backed_[i]) != backed) continue;
    if (!runs.empty() && runs.back().end == i * kExtent) {
      runs.back().end += kExtent;
    } else {
      runs.push_back({i * kExtent, (i + 1) * kExtent});
    }
  }
  return runs;
}

void ShmParts::set_backed(ByteRange extents, bool backed) {
  const std::size_t end = extents.end / kExtent;
  if (backed_.size() < end) backed_.resize(end);
  std::fill(backed_.begin() + static_cast<std::ptrdiff_t>(extents.begin / kExtent),
            backed_.begin() + static_cast<std::ptrdiff_t>(end), backed);
}

}  // namespace fdl
