// GroupSeals authenticates messages of the program's own between the ranks of a group, from end to end: whatever
// transport, algorithm or library carries them.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "runtime/group/group.h"

namespace fdl {

inline constexpr std::size_t kSealBytes = 32;
using GroupSeal = std::array<std::byte, kSealBytes>;

// Any thread may use it.
class GroupSeals {
 public:
  // `session_key` is that of the world.
  GroupSeals(Group& group, std::string_view session_key) : group_(group), session_key_(session_key) {}

  // Seals a message of this rank. `purpose` is a text that the receivers know.
  GroupSeal seal(std::string_view purpose, std::span<const ConstBytes> parts) const;
  // AUTHENTICATION, with the names of both ranks, if the rank `sender` of the group has not sealed these bytes for this
  // purpose.
  Status open(int sender, std::string_view purpose, std::span<const ConstBytes> parts, const GroupSeal& seal) const;

 private:
  bool stays_in_memory() const;
  std::array<std::byte, 16> tag_of(int sender, std::string_view salt, std::string_view purpose,
                                   std::span<const ConstBytes> parts) const;

  Group& group_;
  std::string_view session_key_;
};

}  // namespace fdl
