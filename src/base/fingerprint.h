// fingerprint_of() returns eight hexadecimal digits that identify a text. It detects accidental differences and is not
// cryptographic.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fdl {

// FNV-1a, folded to 32 bits.
inline std::string fingerprint_of(std::string_view text) {
  uint64_t state = 0xcbf29ce484222325;
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  // XOR folding, by which the authors of FNV shorten it: all 64 bits take part.
  state ^= state >> 32;
  std::string digits;
  for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[state >> shift & 15];
  return digits;
}

}  // namespace fdl
