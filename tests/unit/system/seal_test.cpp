// Tests of Seal: what was sealed opens, and nothing else does.
#include "system/seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "system/handshake.h"

namespace fdl {
namespace {

std::string bytes_from_hex(std::string_view digits) {
  std::string bytes;
  for (; !digits.empty(); digits.remove_prefix(2)) {
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(0, 2)), nullptr, 16));
  }
  return bytes;
}

// Test case 1 of RFC 5869. The first 32 bytes of its output are the first block.
TEST(SessionKey, IsHkdf) {
  const std::string key =
      derive_session_key(bytes_from_hex("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"),
                         bytes_from_hex("000102030405060708090a0b0c"), bytes_from_hex("f0f1f2f3f4f5f6f7f8f9"));
  EXPECT_EQ(hex(bytes_of(key)), "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
  EXPECT_NE(derive_session_key("key", "salt", "a"), derive_session_key("key", "salt", "b"));
  EXPECT_NE(derive_session_key("key", "salt", "a"), derive_session_key("key", "other", "a"));
}

const std::string kSealKey(32, 'k');

// A message with a plain head and an encrypted body, as it travels.
struct Sealed {
  std::string head, body;
  Tag tag;
};

Sealed seal(Seal& sender, std::string head, const std::string& body) {
  Sealed message{std::move(head), body, {}};
  sender.begin();
  sender.add(bytes_of(message.head));
  sender.crypt(bytes_of(body), reinterpret_cast<std::byte*>(message.body.data()));
  message.tag = sender.finish();
  return message;
}

// Decrypts in pieces, as bytes arrive.
bool open(Seal& receiver, const Sealed& message, std::string& body) {
  body = message.body;
  receiver.begin();
  receiver.add(bytes_of(message.head).first(message.head.size() / 2));
  receiver.add(bytes_of(message.head).subspan(message.head.size() / 2));
  const Bytes bytes = std::as_writable_bytes(std::span(body));
  for (std::size_t done = 0; done < bytes.size(); done += 7) {
    const Bytes piece = bytes.subspan(done, std::min<std::size_t>(7, bytes.size() - done));
    receiver.crypt(piece, piece.data());
  }
  return receiver.finish(message.tag);
}

TEST(Seal, OpensWhatWasSealed) {
  Seal sender(kSealKey, Seal::End::sender);
  Seal receiver(kSealKey, Seal::End::receiver);
  std::string body;
  for (const std::size_t size : {0, 1, 15, 16, 17, 100, 4097}) {
    const std::string text(size, 'x');
    const Sealed message = seal(sender, "head", text);
    EXPECT_TRUE(open(receiver, message, body)) << size;
    EXPECT_EQ(body, text);
    EXPECT_TRUE(size < 16 || message.body != text);
  }
}

TEST(Seal, RefusesEveryChangedBit) {
  Seal sender(kSealKey, Seal::End::sender);
  const Sealed good = seal(sender, "head of it", "the body of it");
  std::string body;
  const auto expect_refused = [&](Sealed changed) {
    Seal receiver(kSealKey, Seal::End::receiver);
    EXPECT_FALSE(open(receiver, changed, body));
  };
  for (int bit = 0; bit < 8; ++bit) {
    const auto flip = [bit](char byte) { return static_cast<char>(byte ^ (1 << bit)); };
    for (std::size_t i = 0; i < good.head.size(); ++i) {
      Sealed changed = good;
      changed.head[i] = flip(changed.head[i]);
      expect_refused(changed);
    }
    for (std::size_t i = 0; i < good.body.size(); ++i) {
      Sealed changed = good;
      changed.body[i] = flip(changed.body[i]);
      expect_refused(changed);
    }
    for (std::size_t i = 0; i < kTagBytes; ++i) {
      Sealed changed = good;
      changed.tag[i] ^= static_cast<std::byte>(1 << bit);
      expect_refused(changed);
    }
  }
}

TEST(Seal, RefusesRepeatedLostAndReorderedMessages) {
  Seal sender(kSealKey, Seal::End::sender);
  const Sealed first = seal(sender, "", "first");
  const Sealed second = seal(sender, "", "second");
  std::string body;
  Seal receiver(kSealKey, Seal::End::receiver);
  EXPECT_FALSE(open(receiver, second, body)) << "the first one was lost or comes later";
  ASSERT_TRUE(open(receiver, first, body));
  EXPECT_FALSE(open(receiver, first, body)) << "repeated";
  EXPECT_TRUE(open(receiver, second, body));
}

TEST(Seal, RefusesMessagesOfAnotherKey) {
  Seal sender(kSealKey, Seal::End::sender);
  Seal receiver(std::string(32, 'o'), Seal::End::receiver);
  std::string body;
  EXPECT_FALSE(open(receiver, seal(sender, "a", "b"), body));
}

TEST(Seal, ACheckLeavesTheMessageTheNextOne) {
  Seal sender(kSealKey, Seal::End::sender);
  Seal receiver(kSealKey, Seal::End::receiver);
  const Sealed message = seal(sender, "head", "");
  for (int i = 0; i < 2; ++i) {
    receiver.begin();
    receiver.add(bytes_of(message.head));
    EXPECT_TRUE(receiver.check(message.tag));
  }
  std::string body;
  EXPECT_TRUE(open(receiver, message, body));
}

}  // namespace
}  // namespace fdl
