// Under ThreadSanitizer an access costs tens of instructions: tests then go the same paths with fewer values on each.
#pragma once

namespace fdl::test {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif

constexpr int unless_sanitized(int usual, int under_it) { return kThreadSanitized ? under_it : usual; }

}  // namespace fdl::test
