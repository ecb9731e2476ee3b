// This file formats the names of members for errors, and fetches facts where an exchange has no request for several.
#include "contract/membership.h"

#include <fmt/format.h>

namespace fdl {

Result<ManyFacts> fetch_each(std::string_view prefix, const std::vector<int>& ranks,
                             const std::function<Result<std::string>(const std::string& key)>& fetch) {
  ManyFacts facts;
  for (const int rank : ranks) {
    auto value = fetch(fmt::format("{}{}", prefix, rank));
    if (!value.ok() && value.status().code() != Code::timeout) return value.status();
    if (!value.ok()) facts.missing.push_back(rank);
    facts.values.push_back(value.ok() ? value.take() : std::string());
  }
  return facts;
}

std::string name_of(const Member& member) {
  if (member.host_name.empty()) return fmt::format("rank {}", member.world_rank);
  return fmt::format("rank {} ({})", member.world_rank, member.host_name);
}

std::string Membership::name_of(int member) const { return fdl::name_of(members[static_cast<std::size_t>(member)]); }

Result<std::string> Membership::fetch_from(std::string_view transport, int member, std::string_view key) const {
  auto fetched = exchange->fetch(key, deadline);
  if (fetched.ok() || fetched.status().code() != Code::timeout) return fetched;
  const Member& missed = members[static_cast<std::size_t>(member)];
  return Status::blame(missed.world_rank, missed.host_name, Code::timeout,
                       fmt::format("{}: {} did not join '{}' in time; see its log, or raise start_timeout_s", transport,
                                   name_of(member), id));
}

}  // namespace fdl
