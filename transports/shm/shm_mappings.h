// One mapping of a segment serves all ranks that are threads of one process.
#pragma once

#include <memory>

#include "system/shared_segment.h"

namespace fdl {

// Keeps the mapping of a segment that this process has made, for map_once(). From any thread.
std::shared_ptr<SharedSegment> keep_mapping(SharedSegment segment);
// Returns the mapping that this process has of the segment already, or else maps it. From any thread.
Result<std::shared_ptr<SharedSegment>> map_once(UniqueFd fd);

}  // namespace fdl
