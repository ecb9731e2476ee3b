// GroupLaunch adds up the memory that its buckets need, makes one request for it, and hands out the parts.
#include "runtime/named/bucket/group_launch.h"

namespace fdl {

GroupLaunch::GroupLaunch(Communicator& comm, DeviceWork& device, const std::vector<Need>& needs)
    : comm_(comm), device_(device) {
  for (const Need& need : needs) {
    total_.packed += aligned(need.packed);
    total_.own += aligned(need.own);
  }
  if (fits() || device_.scratch_is_at_limit) return;
  scratch_.spec.device = &device_.device();
  scratch_.spec.stream = device_.stream();
  scratch_.memory = ScratchRequest{total_.packed};
  comm_.start(scratch_);
}

bool GroupLaunch::fits() const { return total_.packed <= device_.scratch.bytes; }

Status GroupLaunch::take_scratch() {
  const auto* granted = std::get_if<ScratchRequest>(&scratch_.memory);
  if (granted == nullptr) return {};
  FDL_RETURN_IF_ERROR(scratch_.completion.status);
  device_.scratch = {granted->memory, granted->bytes};
  device_.scratch_is_at_limit = !fits();
  return {};
}

void* GroupLaunch::next_packed(std::size_t bytes) {
  std::byte* const start = static_cast<std::byte*>(device_.scratch.memory) + taken_.packed;
  taken_.packed += aligned(bytes);
  return start;
}

Result<void*> GroupLaunch::next_own(std::size_t bytes) {
  FDL_ASSIGN_OR_RETURN(void* const all, device_.own_scratch(total_.own));
  void* const start = static_cast<std::byte*>(all) + taken_.own;
  taken_.own += aligned(bytes);
  return start;
}

void GroupLaunch::start() {
  if (!operations_.empty()) comm_.launch_group(operations_);
}

}  // namespace fdl
