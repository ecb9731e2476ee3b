// The kernel counts the rings of an Event; clear() resets the count.
#include "system/event.h"

#include <sys/eventfd.h>

#include <cstdint>

namespace fdl {

Result<Event> Event::make() {
  // Non-blocking: clear() on an event that was not rung returns at once.
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return Status::from_errno("eventfd");
  return Event(std::move(fd));
}

void Event::ring() const {
  const uint64_t one = 1;
  // It fails only if the counter is full, and then the descriptor is readable anyway.
  [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof one);
}

void Event::clear() const {
  uint64_t rings = 0;
  [[maybe_unused]] const auto taken = ::read(fd_.get(), &rings, sizeof rings);
}

}  // namespace fdl
