// Replaces operator new of the whole program and counts each thread's allocations. One source of a program includes it.
#pragma once

#include <cstdlib>
#include <new>

namespace fdl::test {

inline thread_local int allocations = 0;

inline void* allocate_counted(std::size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace fdl::test

void* operator new(std::size_t bytes) { return fdl::test::allocate_counted(bytes); }
void* operator new[](std::size_t bytes) { return fdl::test::allocate_counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
