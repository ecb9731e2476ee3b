// These functions order the work of a bucket on a device among the work that its tensors' streams have before and after
// it.
#pragma once

#include "runtime/device/device_work.h"
#include "runtime/named/entry.h"

namespace fdl {

// The group's stream waits for the work that the tensors' streams had at submission.
inline Status begin_after_tensors(DeviceWork& device, const Entries& entries) {
  for (const auto& entry : entries) {
    if (entry) FDL_RETURN_IF_ERROR(device.begin_after(*entry->place));
  }
  return {};
}

// The tensors' streams wait for the work that is queued on the group's stream.
inline Status hand_over_results(DeviceWork& device, const Entries& entries) {
  FDL_RETURN_IF_ERROR(device.finish());
  for (const auto& entry : entries) {
    if (entry) FDL_RETURN_IF_ERROR(device.hand_over(*entry->place));
  }
  return {};
}

}  // namespace fdl
