// These functions of NcclCollectives register memory with NCCL: as a window where all ranks register alike, or else as
// plain memory of this rank.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transports/nccl/nccl_collectives.h"

namespace fdl {

Status NcclCollectives::enroll(void* memory, std::size_t bytes, bool alike) {
  if (!communicator_->status().ok()) return communicator_->status();
  enrolled_.push_back({.memory = memory, .bytes = bytes, .alike = alike});
  return {};
}

// Called at the end. Memory that cannot be unregistered, because work still uses it or NCCL is busy, is freed with the
// communicator, which is then aborted.
void NcclCollectives::dismiss_all() {
  const auto through = enrolled_.empty() || !in_flight_ ? Result<bool>(true) : device_.reached(event_);
  if (!through.ok() || !*through) {
    communicator_->stop(Status(Code::shut_down, "nccl: its communicator ended before the device was through"));
  }
  while (!enrolled_.empty()) {
    const auto gone = dismiss(enrolled_.front().memory);
    if (!gone.ok() || !*gone) return;
  }
}

Status NcclCollectives::register_memory(Enrolled& memory) {
  const NcclFeatures& features = communicator_->library().features();
  const auto& functions = communicator_->functions();
  const bool fits_window = memory.alike && features.symmetric && memory.bytes % nccl::kWindowAlignment == 0;
  if (fits_window && !std::exchange(memory.window_requested, true)) {
    // All ranks take part, so that the call may wait for them.
    const auto request = [this, &functions, &memory] {
      return communicator_->call(functions.CommWindowRegister, communicator_->get(), memory.memory, memory.bytes,
                                 &memory.window, nccl::kWindowSymmetric);
    };
    if (!communicator_->has_call_thread()) return communicator_->called(request(), "registering a window");
    communicator_->begin_call(request);
    return {};
  }
  memory.registered = true;
  // Where NCCL has no windows (NCCL_WIN_ENABLE=0, or a topology without them), it reports success and makes none.
  if (memory.window != nullptr || !features.registration) return {};
  const nccl::Outcome outcome =
      communicator_->call(functions.CommRegister, communicator_->get(), memory.memory, memory.bytes, &memory.handle);
  if (nccl::is_accepted(outcome)) return communicator_->called(outcome, "registering memory");
  log_info("nccl: {} bytes stay unregistered: {}", memory.bytes,
           communicator_->library().text_for(outcome, communicator_->get()));
  memory.handle = nullptr;
  return {};
}

// If a call leaves NCCL busy, the next call finds nothing enrolled and waits for NCCL.
Result<bool> NcclCollectives::dismiss(void* memory) {
  FDL_ASSIGN_OR_RETURN(const bool ready, communicator_->ready());
  if (!ready) return false;
  const auto known =
      std::find_if(enrolled_.begin(), enrolled_.end(), [&](const auto& e) { return e.memory == memory; });
  if (known == enrolled_.end()) return true;
  const Enrolled gone = *known;
  enrolled_.erase(known);
  const auto& functions = communicator_->functions();
  if (gone.window != nullptr) {
    FDL_RETURN_IF_ERROR(communicator_->called(
        communicator_->call(functions.CommWindowDeregister, communicator_->get(), gone.window), "giving up a window"));
  } else if (gone.handle != nullptr) {
    FDL_RETURN_IF_ERROR(communicator_->called(
        communicator_->call(functions.CommDeregister, communicator_->get(), gone.handle), "unregistering memory"));
  }
  poll_soon();
  return communicator_->ready();
}

}  // namespace fdl
