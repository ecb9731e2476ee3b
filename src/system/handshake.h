// The handshake authenticates a new connection: both ends prove possession of the job's key with HMAC-SHA256 over fresh
// nonces (OpenSSL).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

namespace fdl {

using Digest = std::array<uint8_t, 32>;
Digest hmac_sha256(std::string_view key, std::string_view message);
Digest sha256(std::string_view message);
bool equal_in_constant_time(const Digest& a, const Digest& b);
std::string as_text(const Digest& digest);  // its bytes
// Returns `count` random bytes, as they are and as lower-case hexadecimal text.
std::string random_bytes(std::size_t count);
std::string random_hex(std::size_t count);
// Writes bytes as lower-case hexadecimal digits, two for each byte.
std::string hex(ConstBytes bytes);

// The result of a successful handshake.
struct Introduced {
  std::string peer;         // the other end's `mine`
  std::string session_key;  // 32 bytes, different for every connection
};

// Introduction is the handshake as a state machine, for a driver of many connections at once. The driver enforces the
// deadline. The parameters are those of introduce_as_client().
class Introduction {
 public:
  enum class Role { client, server };
  Introduction(Role role, std::string_view job_key, std::string_view purpose, std::string_view mine);

  // Sends and receives as much as the socket allows now, and never a byte beyond the handshake. Returns true when both
  // ends are authenticated; then nothing is left to send. If it returns false, call again when the socket is ready.
  Result<bool> advance(int fd);
  bool has_output() const { return sent_ < outgoing_.size(); }
  bool received_anything() const { return received_anything_; }
  // Returns whether a client has begun to send its proof. From then on the server may regard the connection as made.
  bool has_proved() const { return client_nonce_ == my_nonce_ && awaits_ != Awaits::greeting; }
  // Returns whether the other end is a farandole process, of any version and key.
  bool met_farandole() const { return met_farandole_; }
  // Whether it has another version of the handshake, so that no try can succeed.
  bool met_other_version() const { return met_other_version_; }
  const Introduced& introduced() const { return introduced_; }

 private:
  // The part that is awaited next. A server awaits proof and proof_text, a client greeting, answer and answer_text.
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
  Digest claimed_{};  // the other end's proof; it can be checked only once the text has arrived

  Awaits awaits_ = Awaits::nothing;
  std::string incoming_;  // buffer for the awaited part, with exactly its size
  std::size_t received_ = 0;
  std::string outgoing_;
  std::size_t sent_ = 0;
  bool received_anything_ = false;
  bool met_farandole_ = false;
  bool met_other_version_ = false;
  Introduced introduced_;
};

// Run the handshake on a connected non-blocking stream socket and block until it ends or the deadline passes. The proof
// covers `purpose` ("tcp all/0"), which must be equal on both ends. `mine` is a short text (at most 256
// bytes, such as "rank 3") that the other end receives authenticated. An end without the key receives only random bytes
// that do not depend on the key. The failure is AUTHENTICATION: "wrong job key" or "not a farandole connection".
Result<Introduced> introduce_as_client(int fd, std::string_view job_key, std::string_view purpose,
                                       std::string_view mine, Deadline deadline);
Result<Introduced> introduce_as_server(int fd, std::string_view job_key, std::string_view purpose,
                                       std::string_view mine, Deadline deadline);

}  // namespace fdl
