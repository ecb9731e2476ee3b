// These functions order the work of a bucket on a device among the work that its tensors' streams have before and after
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "runtime/device/device_work.h"
#include "runtime/named/entry.h"

namespace fdl {

// The group's stream waits for the work that the tensors' streams had at submission: once for each stream, for the
// last of its submissions.
inline Status begin_after_tensors(DeviceWork& device, const Entries& entries) {
  const auto is_superseded = [&](const DevicePlace& place) {
    // Handle 2 is another stream on each thread, so its submissions are not compared.
    return reinterpret_cast<uintptr_t>(place.stream()) != 2 &&
           std::any_of(entries.begin(), entries.end(), [&](const auto& other) {
             return other && other->place->stream() == place.stream() && other->place->number() > place.number();
           });
  };
  const DevicePlace* before = nullptr;
  for (const auto& entry : entries) {
    if (!entry || entry->place.get() == before || is_superseded(*entry->place)) continue;
    before = entry->place.get();
    FDL_RETURN_IF_ERROR(device.begin_after(*before));
  }
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
