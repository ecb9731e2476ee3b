// Seal protects the messages of one direction of a connection against change, replay, loss and reordering, and encrypts
// them if wanted: AES-256-GCM (OpenSSL) with the number of the message as nonce.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

struct evp_cipher_ctx_st;

namespace fdl {

// Derives a key of 32 bytes by HKDF-SHA256 (RFC 5869). Keys of different purposes are independent of each other.
std::string derive_session_key(std::string_view key, std::string_view salt, std::string_view purpose);

// The error for a message that fails its check: AUTHENTICATION without a culprit, because neither end is at fault.
Status tampered_between(std::string_view what, std::string_view sender, std::string_view receiver);

inline constexpr std::size_t kTagBytes = 16;
using Tag = std::array<std::byte, kTagBytes>;

bool equal_in_constant_time(const Tag& a, const Tag& b);

// Both ends count the messages, and the count is not sent. A message that arrives with another count than it was sealed
// with fails the check, as does any changed byte. A key must belong to one Seal on each end: never use it for a second
// sender or a second connection.
//
// A message begins with begin(), continues with any number of add() and then crypt(), and ends with finish() or
// check(). No call allocates or blocks.
class Seal {
 public:
  enum class End { sender, receiver };
  Seal(std::string_view key, End end);  // a key of 32 bytes
  ~Seal();
  Seal(Seal&& other) noexcept;
  Seal& operator=(Seal&& other) noexcept;

  // Begins the next message. Call it again to begin the same message anew.
  void begin();
  // Adds bytes that travel as they are.
  void add(ConstBytes bytes);
  // Adds bytes that travel encrypted: encrypts them at the sender, decrypts them at the receiver. `to` may be the
  // address of `from`. Decrypted bytes are not authentic before finish() has returned true.
  void crypt(ConstBytes from, std::byte* to);

  // The number of the next message. A sender may go back to the number of a message of which no byte, and none of a
  // later one, has left this process: a nonce must not be used for two messages that others can see.
  uint64_t number() const { return number_; }
  void go_back_to(uint64_t number) { number_ = number; }

  // Sender: ends the message and returns its tag.
  Tag finish();
  // Receiver: ends the message. Returns whether it is the one that the sender sealed; if not, the connection is
  // unusable.
  [[nodiscard]] bool finish(const Tag& tag);
  // Receiver: the same, but the message stays the next one.
  [[nodiscard]] bool check(const Tag& tag);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  End end_;
  uint64_t number_ = 0;  // of messages that have ended
};

}  // namespace fdl
