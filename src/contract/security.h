// Security says how the bytes that leave a host are protected: one choice for all data of a job, from the configuration
// and the kind of the job's key.
#pragma once

#include <string_view>

#include "base/status.h"
#include "contract/membership.h"

namespace fdl {

enum class Security {
  none,       // bytes travel as they are
  integrity,  // every change, replay and loss is detected
  encrypt,    // the same, and no other process can read them
};

std::string_view name_of(Security security);

// Returns INVALID_ARGUMENT if config.security is none of "auto", "none", "integrity" and "encrypt".
Status check_security(const Config& config);

// Returns the protection of data on a network between this rank and `member`; both compute the same. "auto" protects
// the integrity of data between hosts if the job's key is a secret: a key that others can compute would prove nothing.
Security security_with(const Membership& membership, const Member& member);

}  // namespace fdl
