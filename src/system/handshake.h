// Handshake: both ends of a new connection prove that they know the job's key (HMAC-SHA256 over fresh nonces, OpenSSL).
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace fdl {

using Digest = std::array<uint8_t, 32>;
Digest hmac_sha256(std::string_view key, std::string_view message);
bool equal_in_constant_time(const Digest& a, const Digest& b);
// `count` random bytes as lower-case hexadecimal text.
std::string random_hex(std::size_t count);

// Blocking, bounded by the deadline, for a connected non-blocking stream socket. `purpose` is bound into the proof
// ("tcp lane of comm/all/0"), `mine` is a small text (at most 256 bytes, such as "rank 3") that the other end receives
// authenticated. Returns the other end's text and a session key for later frames. Whoever does not know the key gets
// nothing but 32 random bytes; the refusal says AUTHENTICATION, "wrong job key" or "not a farandole connection".
struct Introduced {
  std::string peer;         // the other end's `mine`
  std::string session_key;  // 32 bytes, different for every connection
};
Result<Introduced> introduce_as_client(int fd, std::string_view job_key, std::string_view purpose,
                                       std::string_view mine, Deadline deadline);
Result<Introduced> introduce_as_server(int fd, std::string_view job_key, std::string_view purpose,
                                       std::string_view mine, Deadline deadline);

}  // namespace fdl
