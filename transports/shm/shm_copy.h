// These functions copy memory with or without the caches, by whether the bytes are read again soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <hwy/targets.h>
#include <immintrin.h>
#endif

namespace fdl {

inline void copy_bytes(void* target, const void* source, std::size_t bytes) {
  if (bytes != 0 && target != source) std::memcpy(target, source, bytes);
}

#if defined(__x86_64__)
// Copies kPages pages side by side, as often as they fit into `bytes`. Returns the bytes copied.
template <std::size_t kPages>
std::size_t copy_pages(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  std::size_t done = 0;
  for (; done + kPages * kPage <= bytes; done += kPages * kPage) {
    for (std::size_t line = 0; line < kPage; line += 128) {
      for (std::size_t page = 0; page < kPages; ++page) {
        const std::size_t at = done + page * kPage + line;
        __m128i words[8];
        for (std::size_t i = 0; i < 8; ++i) words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + i);
        for (std::size_t i = 0; i < 8; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at) + i, words[i]);
      }
    }
  }
  return done;
}
#endif

// Copies from memory that is in no cache. Several pages are read at once, because each is a stream of its own to the
// hardware prefetcher, and a single stream waits for memory most of the time. 64 KiB: one page at a time 6.6 us,
// four 5.2, eight 4.8, sixteen no better.
inline void copy_cold(void* target, const void* source, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  std::size_t done = 0;
#if defined(__x86_64__)
  done = copy_pages<8>(to, from, bytes);
  done += copy_pages<4>(to + done, from + done, bytes - done);
#endif
  copy_bytes(to + done, from + done, bytes - done);
}

#if defined(__x86_64__)
// Stores one whole line at a time. With smaller stores a line may leave the core in parts, each of which costs a write.
__attribute__((target("avx512f"))) inline void stream_wide_lines(std::byte* to, const std::byte* from,
                                                                 std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
}

inline void stream_narrow_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) {
    __m128i words[4];
    for (std::size_t k = 0; k < 4; ++k) words[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i) + k);
    for (std::size_t k = 0; k < 4; ++k) _mm_stream_si128(reinterpret_cast<__m128i*>(to + i) + k, words[k]);
  }
}

inline void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  // Checked once per process. Highway's targets with AVX-512 are HWY_AVX3 and those with lower bits.
  static const bool wide = (hwy::SupportedTargets() & (HWY_AVX3 | (HWY_AVX3 - 1))) != 0;
  wide ? stream_wide_lines(to, from, bytes) : stream_narrow_lines(to, from, bytes);
}
#endif

// Copies past the caches: lines are written without being read first, which saves a third of the memory traffic. Use it
// for results that are not read again soon. Call order_streams() before the store that publishes them.
inline void stream_unordered(void* target, const void* source, std::size_t bytes) {
#if defined(__x86_64__)
  constexpr std::size_t kLine = 64;
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  if (to == from) return;
  const std::size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  if (bytes < head + kLine) return copy_bytes(to, from, bytes);
  copy_bytes(to, from, head);
  const std::size_t whole = (bytes - head) / kLine * kLine;
  stream_lines(to + head, from + head, whole);
  copy_bytes(to + head + whole, from + head + whole, bytes - head - whole);
#else
  copy_bytes(target, source, bytes);
#endif
}

// Orders streamed stores before later stores; a release store alone does not.
inline void order_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

inline void stream_bytes(void* target, const void* source, std::size_t bytes) {
  stream_unordered(target, source, bytes);
  order_streams();
}

// Prefetches bytes that will be read soon, so that they arrive while other work is done.
inline void fetch_to_read([[maybe_unused]] const std::byte* bytes, [[maybe_unused]] std::size_t count) {
  for (std::size_t i = 0; i < count; i += 64) __builtin_prefetch(bytes + i);
}

// Prefetches lines for writing: takes them from the cores that have read them, so that a later write does not wait.
inline void fetch_to_write([[maybe_unused]] const std::byte* bytes, [[maybe_unused]] std::size_t count) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < count; i += 64) asm volatile("prefetchw %0" ::"m"(bytes[i]));
#elif defined(__aarch64__)
  for (std::size_t i = 0; i < count; i += 64) __builtin_prefetch(bytes + i, 1);
#endif
}

}  // namespace fdl
