// Communicator's registration of memory on devices, which any thread requests and the driving thread carries out.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/communicator.h"
#include "engine/communicator_state.h"

namespace fdl {
namespace {

// How often forget_memory() looks whether a library that is busy has finished.
constexpr auto kBusyPoll = std::chrono::microseconds(200);

}  // namespace

Status Communicator::State::apply_registrations() {
  MutexLock lock(registered_mutex);
  has_new_registrations.store(false, std::memory_order_relaxed);
  for (Registered& one : registered) {
    if (std::exchange(one.applied, true) || !devices->is_on(*one.device)) continue;
    FDL_RETURN_IF_ERROR(devices->register_memory(one.memory, one.bytes));
  }
  return {};
}

Status Communicator::register_memory(Device& device, void* memory, std::size_t bytes) {
  State& s = *state_;
  if (Status ended = status(); !ended.ok()) return ended;
  MutexLock lock(s.registered_mutex);
  const bool known =
      std::any_of(s.registered.begin(), s.registered.end(), [&](const auto& one) { return one.memory == memory; });
  if (known) return Status(Code::invalid_argument, fmt::format("the memory at {} is registered already", memory));
  s.registered.push_back({&device, memory, bytes});
  s.has_new_registrations.store(true, std::memory_order_release);
  return {};
}

// Once memory was passed to `devices`, the driving thread holds driver_mutex during each call.
Result<bool> Communicator::forget_memory(void* memory, Deadline deadline) {
  State& s = *state_;
  {
    MutexLock lock(s.registered_mutex);
    const auto found =
        std::find_if(s.registered.begin(), s.registered.end(), [&](const auto& one) { return one.memory == memory; });
    if (found == s.registered.end()) {
      return Status(Code::invalid_argument, fmt::format("the memory at {} is not registered", memory));
    }
    const bool applied = found->applied;
    s.registered.erase(found);
    if (!applied) return true;
  }
  for (;;) {
    {
      MutexLock driver(s.driver_mutex);
      if (s.failed || s.devices == nullptr) return true;
      FDL_ASSIGN_OR_RETURN(const bool forgotten, s.devices->forget_memory(memory));
      if (forgotten) return true;
    }
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kBusyPoll);
  }
}

}  // namespace fdl
