// The handshake exchanges three messages of bounded length:
//
//   server -> client   greeting  magic, version, nonce Ns
//   client -> server   proof     magic, version, nonce Nc, HMAC(key, "client", purpose, Ns, Nc, text), text size, text
//   server -> client   answer    HMAC(key, "server", purpose, Ns, Nc, text), text size, text
//   session key                  HMAC(key, "session", purpose, Ns, Nc)
//
// The server answers only a valid proof, so a stranger receives 32 random bytes and nothing that depends on the key.
#include "system/handshake.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "system/poller.h"

namespace fdl {
namespace {

constexpr uint32_t kMagic = 0x4c444146;  // "FADL" in memory
// The version of the handshake. Another one is refused before anything behind the head is read.
constexpr uint32_t kVersion = 2;  // 2: seals of long frames are those of their digests
constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kHeadBytes = 8;  // magic, version
// Bounds the memory that a connection without a valid proof can use: an Introduction buffers one part.
constexpr std::size_t kMostText = 256;
constexpr std::size_t kGreetingBytes = kHeadBytes + kNonceBytes;
constexpr std::size_t kProofBytes = kHeadBytes + kNonceBytes + kDigestBytes + 4;
constexpr std::size_t kAnswerBytes = kDigestBytes + 4;

// Little-endian: the byte order of all supported machines.
std::string word(std::size_t value) {
  const auto narrow = static_cast<uint32_t>(value);
  return std::string(reinterpret_cast<const char*>(&narrow), sizeof narrow);
}

uint32_t word_at(std::string_view bytes, std::size_t offset) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string head() { return word(kMagic) + word(kVersion); }

Status refusal(std::string_view why) { return Status(Code::authentication, "handshake: " + std::string(why)); }

Result<Introduced> introduce(Introduction introduction, int fd, Deadline deadline) {
  while (true) {
    FDL_ASSIGN_OR_RETURN(const bool finished, introduction.advance(fd));
    if (finished) return introduction.introduced();
    const bool ready = introduction.has_output() ? wait_writable(fd, deadline) : wait_readable(fd, deadline);
    if (!ready) {
      return refusal(introduction.received_anything()
                         ? "the other end stopped in the middle of the handshake"
                         : "the other end sent nothing in time: not a farandole connection, "
                           "or a busy one");
    }
  }
}

// OpenSSL frees its tables when the process exits, but background threads may use them until its very end. Where the
// program itself has started OpenSSL, its choice stays.
void keep_openssl_at_exit() {
  static const bool kept = ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;
  FDL_CHECK(kept);
}

}  // namespace

Digest hmac_sha256(std::string_view key, std::string_view message) {
  keep_openssl_at_exit();
  Digest digest{};
  unsigned int length = 0;
  const auto* done =
      ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data(), &length);
  FDL_CHECK(done != nullptr && length == digest.size());
  return digest;
}

Digest sha256(std::string_view message) {
  keep_openssl_at_exit();
  Digest digest{};
  const auto* done = ::SHA256(reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data());
  FDL_CHECK(done != nullptr);
  return digest;
}

// memcmp() would return earlier for an earlier difference, and its time would reveal the digest byte by byte.
bool equal_in_constant_time(const Digest& a, const Digest& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string as_text(const Digest& digest) {
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

std::string hex(ConstBytes bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::string random_bytes(std::size_t count) {
  keep_openssl_at_exit();
  std::string bytes(count, '\0');
  // Without randomness a recorded handshake could be replayed, so there is no fallback.
  FDL_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) == 1);
  return bytes;
}

std::string random_hex(std::size_t count) {
  const std::string bytes = random_bytes(count);
  return hex(std::as_bytes(std::span(bytes)));
}

Introduction::Introduction(Role role, std::string_view job_key, std::string_view purpose, std::string_view mine)
    : job_key_(job_key), purpose_(purpose), mine_(mine), my_nonce_(random_bytes(kNonceBytes)) {
  FDL_CHECK(mine.size() <= kMostText);
  if (role == Role::server) {
    server_nonce_ = my_nonce_;
    outgoing_ = head() + my_nonce_;
    await(Awaits::proof, kProofBytes);
  } else {
    client_nonce_ = my_nonce_;
    await(Awaits::greeting, kGreetingBytes);
  }
}

Result<bool> Introduction::advance(int fd) {
  while (true) {
    FDL_RETURN_IF_ERROR(send_what_fits(fd));
    if (awaits_ == Awaits::nothing) return !has_output();
    FDL_ASSIGN_OR_RETURN(const bool complete, receive_what_came(fd));
    if (!complete) return false;
    FDL_RETURN_IF_ERROR(take_incoming());
  }
}

// A greeting has 40 bytes and a proof at most 332, so they fit into an empty socket buffer; partial sends are handled
// anyway.
Status Introduction::send_what_fits(int fd) {
  while (has_output()) {
    const ssize_t count = ::send(fd, outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_NOSIGNAL);
    if (count >= 0) {
      sent_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      return refusal(std::string("the other end hung up: ") + std::strerror(errno));
    }
  }
  return {};
}

Result<bool> Introduction::receive_what_came(int fd) {
  while (received_ < incoming_.size()) {
    const ssize_t count = ::recv(fd, incoming_.data() + received_, incoming_.size() - received_, 0);
    if (count > 0) {
      received_anything_ = true;
      received_ += static_cast<std::size_t>(count);
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    } else if (count == 0 || errno != EINTR) {
      // A server with another key hangs up without an answer.
      if (awaits_ == Awaits::answer && received_ == 0) {
        return refusal("the other end refused the proof: wrong job key, or it expected another purpose than '" +
                       purpose_ + "'");
      }
      return refusal("the other end hung up before it proved possession of the job key");
    }
  }
  return true;
}

void Introduction::await(Awaits what, std::size_t bytes) {
  awaits_ = what;
  incoming_.assign(bytes, '\0');
  received_ = 0;
}

Status Introduction::check_head() {
  if (word_at(incoming_, 0) != kMagic) return refusal("not a farandole connection");
  // Error texts use this: a refusal by another farandole process is of more interest than an unrelated connection.
  met_farandole_ = true;
  met_other_version_ = word_at(incoming_, 4) != kVersion;
  if (met_other_version_) {
    return refusal("the other end uses protocol version " + std::to_string(word_at(incoming_, 4)) +
                   ", this one version " + std::to_string(kVersion) + "; install the same farandole everywhere");
  }
  return {};
}

Status Introduction::take_text_size(std::size_t offset, Awaits next) {
  std::memcpy(claimed_.data(), incoming_.data() + offset, claimed_.size());
  const std::size_t size = word_at(incoming_, offset + kDigestBytes);
  if (size > kMostText) return refusal("not a farandole connection: it announces a text that is too long");
  await(next, size);
  return {};
}

Digest Introduction::proof_of(std::string_view whose, std::string_view text) const {
  std::string message;
  for (const std::string_view part :
       {whose, std::string_view(purpose_), std::string_view(server_nonce_), std::string_view(client_nonce_), text}) {
    // The sizes are included, so that different lists of parts never form the same message.
    message += word(part.size());
    message += part;
  }
  return hmac_sha256(job_key_, message);
}

Status Introduction::take_incoming() {
  switch (awaits_) {
    case Awaits::greeting:
      FDL_RETURN_IF_ERROR(check_head());
      server_nonce_ = incoming_.substr(kHeadBytes, kNonceBytes);
      outgoing_ = head() + client_nonce_ + as_text(proof_of("client", mine_)) + word(mine_.size()) + mine_;
      await(Awaits::answer, kAnswerBytes);
      return {};
    case Awaits::proof:
      FDL_RETURN_IF_ERROR(check_head());
      client_nonce_ = incoming_.substr(kHeadBytes, kNonceBytes);
      return take_text_size(kHeadBytes + kNonceBytes, Awaits::proof_text);
    case Awaits::answer:
      return take_text_size(0, Awaits::answer_text);
    case Awaits::proof_text:
    case Awaits::answer_text: {
      const bool serving = awaits_ == Awaits::proof_text;
      if (!equal_in_constant_time(claimed_, proof_of(serving ? "client" : "server", incoming_))) {
        return refusal("the other end does not have the job key, or has another purpose than '" + purpose_ + "'");
      }
      if (serving) {
        outgoing_ = as_text(proof_of("server", mine_)) + word(mine_.size()) + mine_;
        sent_ = 0;
      }
      // Both ends derive the session key from both nonces, so it differs for each connection and is never sent.
      introduced_ = {incoming_, as_text(proof_of("session", ""))};
      await(Awaits::nothing, 0);
      return {};
    }
    case Awaits::nothing:
      break;
  }
  return {};
}

Result<Introduced> introduce_as_client(int fd, std::string_view job_key, std::string_view purpose,
                                       std::string_view mine, Deadline deadline) {
  return introduce(Introduction(Introduction::Role::client, job_key, purpose, mine), fd, deadline);
}

Result<Introduced> introduce_as_server(int fd, std::string_view job_key, std::string_view purpose,
                                       std::string_view mine, Deadline deadline) {
  return introduce(Introduction(Introduction::Role::server, job_key, purpose, mine), fd, deadline);
}

}  // namespace fdl
