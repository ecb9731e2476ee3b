// These functions order the work of a bucket on a device among the work that its tensors' streams have before and after
// it.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/device/device_work.h"
#include "runtime/named/entry.h"

namespace fdl {

// The group's stream waits for the work that the tensors' streams had at submission: once for each stream, for the
// last of its submissions.
inline Status begin_after_tensors(DeviceWork& device, const Entries& entries) {
  std::vector<const DevicePlace*> last;  // of each stream; nearly always one
  for (const auto& entry : entries) {
    if (!entry) continue;
    const DevicePlace& place = *entry->place;
    const auto known = std::ranges::find_if(last, [&](const DevicePlace* other) {
      // Submissions on a stream of the calling thread may be of different threads.
      return other == &place || (other->stream_id() == place.stream_id() && place.stream_id() != 0);
    });
    if (known == last.end()) {
      last.push_back(&place);
    } else if (place.number() > (*known)->number()) {
      *known = &place;
    }
  }
  for (const DevicePlace* place : last) FDL_RETURN_IF_ERROR(device.begin_after(*place));
  return {};
}

// Publishes the point after which the results are valid. The threads that wait for the operations make their streams
// wait for it; if this thread did that now, the tensors' streams could not compute during the collective.
inline Status publish_results(DeviceWork& device, const Entries& entries) {
  FDL_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceResult> result, device.finish());
  for (const auto& entry : entries) {
    if (!entry) continue;
    Handle::Output& output = entry->result();
    output.ready = result;
    output.stream = entry->place->stream();
    // The device's cache must not reuse memory of the library before the collective has run.
    if (output.memory) FDL_RETURN_IF_ERROR(device.device().note_work(device.stream()));
  }
  return {};
}

}  // namespace fdl
