// Replaces operator new of a test program: an allocation of the threads that the test chooses fails, or several in a
// row. Include it in one source of the program, and define is_chosen() there.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace refused_allocations {

// How many allocations the chosen threads may still make; the one after them fails. Negative: all may be made.
inline std::atomic<int> allowed{-1};
inline std::atomic<int> refused{0};
inline std::atomic<int> more{0};  // so many that follow the first one fail too

// Whether allocations of the calling thread count. Must not allocate.
bool is_chosen();

}  // namespace refused_allocations

// Every allocation of the program, and of the library in it.
void* operator new(std::size_t bytes) {
  using namespace refused_allocations;
  if (allowed.load(std::memory_order_relaxed) >= 0 && is_chosen() && allowed.fetch_sub(1) == 0) {
    ++refused;
    if (more.fetch_sub(1) > 0) allowed = 0;
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
