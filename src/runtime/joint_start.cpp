// JointStart: sums up what is needed, asks once, and deals it out.
#include "runtime/joint_start.h"

namespace fdl {

JointStart::JointStart(Communicator& comm, DeviceWork& device, const std::vector<Need>& needs)
    : comm_(comm), device_(device) {
  for (const Need& need : needs) {
    total_.packed += aligned(need.packed);
    total_.own += aligned(need.own);
  }
  if (fits() || device_.room_is_all) return;
  room_.spec.device = &device_.device();
  room_.spec.stream = device_.stream();
  room_.room_bytes = total_.packed;
  comm_.start(room_);
}

bool JointStart::fits() const { return total_.packed <= device_.room.bytes; }

Status JointStart::take_room() {
  if (room_.room_bytes == 0) return {};
  FDL_RETURN_IF_ERROR(room_.completion.status);
  device_.room = {room_.room, room_.room_bytes};
  device_.room_is_all = !fits();
  return {};
}

void* JointStart::next_packed(std::size_t bytes) {
  std::byte* const start = static_cast<std::byte*>(device_.room.memory) + taken_.packed;
  taken_.packed += aligned(bytes);
  return start;
}

Result<void*> JointStart::next_own(std::size_t bytes) {
  FDL_ASSIGN_OR_RETURN(void* const all, device_.own_room(total_.own));
  void* const start = static_cast<std::byte*>(all) + taken_.own;
  taken_.own += aligned(bytes);
  return start;
}

void JointStart::start() {
  if (!operations_.empty()) comm_.start_together(operations_);
}

}  // namespace fdl
