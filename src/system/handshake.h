// Handshake: both ends of a new connection prove that they know the job's key (HMAC-SHA256 over fresh nonces, OpenSSL).
#pragma once

#include <array>
#include <cstdint>
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

// The same, a piece at a time, for who drives many connections at once. The deadline is the driver's business.
class Introduction {
 public:
  enum class Role { client, server };
  Introduction(Role role, std::string_view job_key, std::string_view purpose, std::string_view mine);

  // Sends and receives what the socket takes now and never a byte beyond the introduction. True when both ends are
  // introduced; then nothing is left to send. False: call again when the socket is ready.
  Result<bool> advance(int fd);
  bool wants_to_send() const { return sent_ < outgoing_.size(); }
  bool heard_anything() const { return heard_anything_; }
  // The other end is a farandole, whatever its version and key.
  bool met_farandole() const { return met_farandole_; }
  const Introduced& introduced() const { return introduced_; }

 private:
  enum class Awaits { greeting, proof, proof_text, answer, answer_text, nothing };

  Status send_what_fits(int fd);
  Result<bool> receive_what_came(int fd);
  void await(Awaits what, std::size_t bytes);
  Status take_incoming();
  Status check_head();
  Status take_text_size(std::size_t offset, Awaits next);
  Digest proof_of(std::string_view whose, std::string_view text) const;

  std::string job_key_;
  std::string purpose_;
  std::string mine_;
  std::string my_nonce_;
  std::string server_nonce_;
  std::string client_nonce_;
  Digest claimed_{};  // the other end's proof, checked when its text is here

  Awaits awaits_ = Awaits::nothing;
  std::string incoming_;  // as long as what is awaited
  std::size_t received_ = 0;
  std::string outgoing_;
  std::size_t sent_ = 0;
  bool heard_anything_ = false;
  bool met_farandole_ = false;
  Introduced introduced_;
};

Result<Introduced> introduce_as_client(int fd, std::string_view job_key, std::string_view purpose,
                                       std::string_view mine, Deadline deadline);
Result<Introduced> introduce_as_server(int fd, std::string_view job_key, std::string_view purpose,
                                       std::string_view mine, Deadline deadline);

}  // namespace fdl
