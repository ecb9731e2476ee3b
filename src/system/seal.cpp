// Seal keeps one OpenSSL context with the expanded key; each message only sets a new nonce.
#include "system/seal.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"
#include "system/handshake.h"

namespace fdl {
namespace {

constexpr std::size_t kSealKeyBytes = 32;
constexpr std::size_t kSealNonceBytes = 12;
// OpenSSL counts bytes in an int.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

const unsigned char* raw_bytes(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

}  // namespace

// One block of HKDF: the digest has as many bytes as the key needs.
std::string derive_session_key(std::string_view key, std::string_view salt, std::string_view purpose) {
  const std::string extracted = as_text(hmac_sha256(salt, key));
  return as_text(hmac_sha256(extracted, std::string(purpose) + '\x01'));
}

bool equal_in_constant_time(const Tag& a, const Tag& b) { return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

Status tampered_between(std::string_view what, std::string_view sender, std::string_view receiver) {
  return Status(Code::authentication,
                fmt::format("a {} from {} to {} is not what was sent: something between the two changed, repeated, "
                            "dropped or added bytes; look for a proxy or an intruder in the network between them",
                            what, sender, receiver));
}

void Seal::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

Seal::Seal(std::string_view key, End end) : context_(EVP_CIPHER_CTX_new()), end_(end) {
  FDL_CHECK(context_ != nullptr && key.size() == kSealKeyBytes);
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
  const int encrypts = end == End::sender ? 1 : 0;
  FDL_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, bytes, nullptr, encrypts) == 1);
}

Seal::~Seal() = default;
Seal::Seal(Seal&& other) noexcept = default;
Seal& Seal::operator=(Seal&& other) noexcept = default;

void Seal::begin() {
  std::array<unsigned char, kSealNonceBytes> nonce{};
  std::memcpy(nonce.data(), &number_, sizeof number_);
  FDL_CHECK(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1) == 1);
}

void Seal::add(ConstBytes bytes) {
  while (!bytes.empty()) {
    const std::size_t step = std::min(bytes.size(), kMostAtOnce);
    int done = 0;
    FDL_CHECK(EVP_CipherUpdate(context_.get(), nullptr, &done, raw_bytes(bytes.data()), static_cast<int>(step)) == 1);
    bytes = bytes.subspan(step);
  }
}

void Seal::crypt(ConstBytes from, std::byte* to) {
  while (!from.empty()) {
    const std::size_t step = std::min(from.size(), kMostAtOnce);
    int done = 0;
    FDL_CHECK(EVP_CipherUpdate(context_.get(), reinterpret_cast<unsigned char*>(to), &done, raw_bytes(from.data()),
                               static_cast<int>(step)) == 1 &&
              static_cast<std::size_t>(done) == step);
    from = from.subspan(step);
    to += step;
  }
}

Tag Seal::finish() {
  FDL_CHECK(end_ == End::sender);
  Tag tag;
  unsigned char rest[kTagBytes];  // GCM leaves none
  int done = 0;
  FDL_CHECK(EVP_CipherFinal_ex(context_.get(), rest, &done) == 1 && done == 0);
  FDL_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1);
  ++number_;
  return tag;
}

bool Seal::finish(const Tag& tag) {
  if (!check(tag)) return false;
  ++number_;
  return true;
}

// OpenSSL compares the tags in constant time.
bool Seal::check(const Tag& tag) {
  FDL_CHECK(end_ == End::receiver);
  Tag expected = tag;
  unsigned char rest[kTagBytes];
  int done = 0;
  FDL_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, expected.data()) == 1);
  return EVP_CipherFinal_ex(context_.get(), rest, &done) == 1;
}

}  // namespace fdl
