// security_with() applies the policies of SECURITY.md.
#include "contract/security.h"

#include <algorithm>
#include <array>

namespace fdl {
namespace {

constexpr std::array kNames{std::string_view("none"), std::string_view("integrity"), std::string_view("encrypt")};

}  // namespace

std::string_view name_of(Security security) { return kNames[static_cast<std::size_t>(security)]; }

Status check_security(const Config& config) {
  if (config.security == "auto" || std::ranges::find(kNames, config.security) != kNames.end()) return {};
  return Status(Code::invalid_argument,
                "FARANDOLE_SECURITY = '" + config.security + "' is not auto, none, integrity or encrypt");
}

Security security_with(const Membership& membership, const Member& member) {
  const auto named = std::ranges::find(kNames, membership.config->security);
  if (named != kNames.end()) return static_cast<Security>(named - kNames.begin());
  const bool leaves_host = member.host_id != membership.me().host_id;
  return leaves_host && membership.key_is_secret ? Security::integrity : Security::none;
}

}  // namespace fdl
