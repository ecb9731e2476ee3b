// A cut divides buckets that have run into the buckets of a locked order.
//
// All tensors of a bucket that has run were submitted before any of them was finished. No rank waits for one of them
// before it submits another, so a bucket may be cut, but buckets may not be joined.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "agree/negotiation/group_launch.h"
#include "agree/negotiation/message.h"

namespace fdl {

// The cut where none was tuned. It depends on what copying into a shared buffer costs against starting a collective.
BucketCut default_cut(bool on_device, bool optimistic);

// Cuts each bucket of `base` by `tuned`, or by its default cut. Only buckets that were launched together may be
// launched together again, up to `group_launch_bytes` in one launch.
std::vector<Bucket> cut_order(const std::vector<Bucket>& base, std::optional<BucketCut> tuned, bool optimistic,
                              std::size_t group_launch_bytes, const FindRequest& find);

// The fields that all tensors of the bucket share; the caller appends the tensors.
Bucket without_tensors(const Bucket& bucket);
void append_tensor(Bucket& to, const Bucket& from, std::size_t index);

}  // namespace fdl
