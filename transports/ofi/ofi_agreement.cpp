// A rank publishes one line: "tcp;ofi_rxm|1.17|2|<address of rail 0>|<address of rail 1>", addresses in hexadecimal. A
// rank without a provider publishes "-" and the reason.
#include "transports/ofi/ofi_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "system/handshake.h"

namespace fdl {
namespace {

constexpr std::size_t kLongestAddress = 256;
constexpr std::size_t kLongestReason = 700;
constexpr int64_t kRoundTrip_ns = 50'000'000;
constexpr char kNone = '-';

std::string facts_of(const OfiLibrary& library, const OfiLink& link) {
  return fmt::format("{}|{}|{}", link.rail(0).fabric(), library.version(), link.rails());
}

// Reads the addresses behind the facts. False: the text is not of this form.
bool read_addresses(std::string_view text, std::size_t rails, std::vector<std::string>& addresses) {
  while (!text.empty()) {
    if (text.front() != '|') return false;
    text.remove_prefix(1);
    const std::string_view digits = text.substr(0, text.find('|'));
    text.remove_prefix(digits.size());
    if (digits.empty() || digits.size() % 2 != 0 || digits.size() > 2 * kLongestAddress) return false;
    std::string address;
    for (std::size_t i = 0; i < digits.size(); i += 2) {
      unsigned byte = 0;
      const char* begin = digits.data() + i;
      if (std::from_chars(begin, begin + 2, byte, 16).ptr != begin + 2) return false;
      address += static_cast<char>(byte);
    }
    addresses.push_back(std::move(address));
  }
  return addresses.size() == rails;
}

std::string line_of(const Status& mine, const OfiLibrary* library, const OfiLink* link) {
  if (!mine.ok()) return kNone + mine.text().substr(0, kLongestReason);
  std::string line = facts_of(*library, *link);
  for (std::size_t i = 0; i < link->rails(); ++i) line += '|' + hex(bytes_of(link->rail(i).address()));
  return line;
}

// The ranks that have no provider, those of one reason together. OK if there are none.
Status missing(const std::vector<std::string>& lines, const Membership& membership, Code code) {
  constexpr std::size_t kNamed = 8;
  std::map<std::string, std::vector<int>> reasons;
  for (int member = 0; member < membership.size(); ++member) {
    const std::string& line = lines[static_cast<std::size_t>(member)];
    if (line.starts_with(kNone)) reasons[line.substr(1)].push_back(member);
  }
  if (reasons.empty()) return {};
  std::string text;
  for (const auto& [reason, members] : reasons) {
    std::string names;
    for (std::size_t i = 0; i < members.size() && i < kNamed; ++i) {
      names += (i == 0 ? "" : ", ") + membership.name_of(members[i]);
    }
    if (members.size() > kNamed) names += fmt::format(" and {} more", members.size() - kNamed);
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", names, reason);
  }
  return Status(code, std::move(text));
}

Status differ(const Membership& membership, const std::string& mine, int member, std::string_view theirs) {
  std::size_t end = 0;
  for (int bars = 0; end < theirs.size() && (theirs[end] != '|' || ++bars < 3); ++end) continue;
  return Status(
      Code::mismatch,
      fmt::format("ofi: {} has {} and {} has {} (provider|libfabric|devices); name the provider in "
                  "FARANDOLE_TRANSPORT=ofi:<provider>, the devices in FARANDOLE_OFI_DEVICES, and use one "
                  "version of libfabric on all ranks",
                  membership.name_of(membership.rank), mine, membership.name_of(member), theirs.substr(0, end)));
}

std::string failure_key(const Membership& membership, int member) {
  return fmt::format("ofi/{}/{}/failed", membership.id, member);
}

}  // namespace

Status agree_over_ofi(const Status& mine, const OfiLibrary* library, OfiLink* link, const Membership& membership,
                      const std::vector<bool>& peers) {
  const auto key_of = [&](int member) { return fmt::format("ofi/{}/{}", membership.id, member); };
  std::vector<std::string> lines(membership.members.size());
  lines[static_cast<std::size_t>(membership.rank)] = line_of(mine, library, link);
  std::vector<bool> readers = peers;
  readers[static_cast<std::size_t>(membership.rank)] = false;
  FDL_RETURN_IF_ERROR(membership.exchange->publish_for(static_cast<int>(std::ranges::count(readers, true)),
                                                       key_of(membership.rank),
                                                       lines[static_cast<std::size_t>(membership.rank)]));
  for (int member = 0; member < membership.size(); ++member) {
    if (member == membership.rank || !peers[static_cast<std::size_t>(member)]) continue;
    FDL_ASSIGN_OR_RETURN(lines[static_cast<std::size_t>(member)], membership.fetch_from("ofi", member, key_of(member)));
  }
  FDL_RETURN_IF_ERROR(missing(lines, membership, mine.ok() ? Code::unsupported : mine.code()));

  const std::string facts = facts_of(*library, *link);
  std::vector<std::vector<std::string>> addresses(link->rails(), std::vector<std::string>(lines.size()));
  for (int member = 0; member < membership.size(); ++member) {
    const std::string& theirs = lines[static_cast<std::size_t>(member)];
    if (member == membership.rank || theirs.empty()) continue;
    std::vector<std::string> found;
    const bool equal = theirs.starts_with(facts + "|");
    if (!equal || !read_addresses(std::string_view(theirs).substr(facts.size()), link->rails(), found)) {
      return differ(membership, facts, member, theirs);
    }
    for (std::size_t i = 0; i < found.size(); ++i) addresses[i][static_cast<std::size_t>(member)] = found[i];
  }
  for (std::size_t i = 0; i < link->rails(); ++i) {
    const Status learned = link->rail(i).learn(addresses[i]);
    if (learned.ok()) continue;
    publish_ofi_failure(membership, learned);
    return learned;
  }
  return {};
}

void publish_ofi_failure(const Membership& membership, const Status& why) {
  static_cast<void>(membership.exchange->publish(failure_key(membership, membership.rank), why.text()));
}

Status fetch_ofi_failure(const Membership& membership, int member) {
  const auto found = membership.exchange->fetch(failure_key(membership, member),
                                                Deadline::after_ns(kRoundTrip_ns).earlier(membership.deadline));
  if (!found.ok()) return {};
  return Status(Code::transport, fmt::format("{}: {}", membership.name_of(member), *found));
}

}  // namespace fdl
