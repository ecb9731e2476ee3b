// A seal is a random salt and a tag. The salt gives each message a key of its own, so that no number must be kept.
#include "runtime/group/group_seals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "system/handshake.h"
#include "system/seal.h"

namespace fdl {
namespace {

constexpr std::size_t kSaltBytes = 16;

std::string name_in(const Group& group, int rank) { return name_of(group.members()[static_cast<std::size_t>(rank)]); }

}  // namespace

// The same on all members: a rank that shares memory with all others is on one host with them.
bool GroupSeals::stays_in_memory() const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank != group_.rank() && !group_.comm().session_key_with(rank).empty()) return false;
  }
  return true;
}

std::array<std::byte, 16> GroupSeals::tag_of(int sender, std::string_view salt, std::string_view purpose,
                                             std::span<const ConstBytes> parts) const {
  const std::string use = fmt::format("farandole message {} {} {}", sender, group_.id(), purpose);
  Seal seal(derive_session_key(session_key_, salt, use), Seal::End::sender);
  seal.begin();
  for (const ConstBytes part : parts) {
    // With their sizes, so that the same bytes in other parts have another tag.
    const uint64_t size = part.size();
    seal.add(std::as_bytes(std::span(&size, 1)));
    seal.add(part);
  }
  return seal.finish();
}

GroupSeal GroupSeals::seal(std::string_view purpose, std::span<const ConstBytes> parts) const {
  GroupSeal made{};
  if (stays_in_memory()) return made;
  const std::string salt = random_bytes(kSaltBytes);
  const auto tag = tag_of(group_.rank(), salt, purpose, parts);
  std::memcpy(made.data(), salt.data(), kSaltBytes);
  std::memcpy(made.data() + kSaltBytes, tag.data(), tag.size());
  return made;
}

Status GroupSeals::open(int sender, std::string_view purpose, std::span<const ConstBytes> parts,
                        const GroupSeal& seal) const {
  if (sender == group_.rank() || stays_in_memory()) return {};
  const std::string_view salt = text_of(ConstBytes(seal).first(kSaltBytes));
  const Tag tag = tag_of(sender, salt, purpose, parts);
  Tag given;
  std::memcpy(given.data(), seal.data() + kSaltBytes, kTagBytes);
  if (equal_in_constant_time(tag, given)) return {};
  return tampered_between(fmt::format("message ({})", purpose), name_in(group_, sender),
                          name_in(group_, group_.rank()));
}

}  // namespace fdl
