// GroupDevice takes the device from the first entry of a bucket.
#include "runtime/named/group_device.h"

namespace fdl {

Status GroupDevice::make_work(const Entries& entries) {
  for (const auto& entry : entries) {
    if (!entry) continue;
    FDL_ASSIGN_OR_RETURN(work_, DeviceWork::make(entry->place->used()));
    return {};
  }
  const Member& me = comm_.members()[static_cast<std::size_t>(comm_.rank())];
  return Status::blame(me.world_rank, me.host_name, Code::unsupported,
                       rank_name_ +
                           " has joined before it used a device, and the others go on with tensors on theirs: let each "
                           "rank run at least one step");
}

}  // namespace fdl
