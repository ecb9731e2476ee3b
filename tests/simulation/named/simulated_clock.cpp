// The C++ library reads the clock by clock_gettime(). The one of this program takes the place of the C library's.
#include "tests/simulation/named/simulated_clock.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace fdl::simulation {
namespace {

constexpr int64_t kReal = -1;
constexpr int64_t kSecond_ns = 1'000'000'000;

int64_t shown_ns = kReal;

}  // namespace

SimulatedClock::SimulatedClock(int64_t moment_ns) : before_ns_(shown_ns) { shown_ns = moment_ns; }
SimulatedClock::~SimulatedClock() { shown_ns = before_ns_; }

}  // namespace fdl::simulation

// The dynamic linker must find it.
extern "C" [[gnu::visibility("default")]] int clock_gettime(clockid_t clock, timespec* now) noexcept {
  using fdl::simulation::kReal;
  using fdl::simulation::kSecond_ns;
  using fdl::simulation::shown_ns;
  if (clock != CLOCK_MONOTONIC || shown_ns == kReal) return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  now->tv_sec = shown_ns / kSecond_ns;
  now->tv_nsec = shown_ns % kSecond_ns;
  return 0;
}
