// A rank publishes one line: "tcp;ofi_rxm|1.17|2|<address of rail 0>|<address of rail 1>", addresses in hexadecimal.
#include "transports/ofi/ofi_agreement.h"

#include <fmt/format.h>

#include <charconv>

#include "system/handshake.h"

namespace fdl {
namespace {

constexpr std::size_t kLongestAddress = 256;

std::string facts_of(const OfiLibrary& library, const OfiLink& link) {
  return fmt::format("{}|{}|{}", link.rail(0).provider(), library.version(), link.rails());
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

}  // namespace

Status agree_over_ofi(const OfiLibrary& library, OfiLink& link, const Membership& membership,
                      const std::vector<bool>& peers) {
  const auto key_of = [&](int member) { return fmt::format("ofi/{}/{}", membership.id, member); };
  const std::string mine = facts_of(library, link);
  std::string line = mine;
  for (std::size_t i = 0; i < link.rails(); ++i) {
    line += '|';
    line += hex(bytes_of(link.rail(i).address()));
  }
  FDL_RETURN_IF_ERROR(membership.exchange->publish(key_of(membership.rank), line));
  std::vector<std::vector<std::string>> addresses(link.rails(), std::vector<std::string>(membership.members.size()));
  for (int member = 0; member < membership.size(); ++member) {
    if (member == membership.rank || !peers[static_cast<std::size_t>(member)]) continue;
    FDL_ASSIGN_OR_RETURN(const std::string theirs, membership.exchange->fetch(key_of(member), membership.deadline));
    std::vector<std::string> found;
    const bool equal = theirs.starts_with(mine + "|");
    if (!equal || !read_addresses(std::string_view(theirs).substr(mine.size()), link.rails(), found)) {
      std::size_t end = 0;
      for (int bars = 0; end < theirs.size() && (theirs[end] != '|' || ++bars < 3); ++end) continue;
      return Status(Code::mismatch,
                    fmt::format("ofi: {} has {} and {} has {} (provider|libfabric|devices); name the provider in "
                                "FARANDOLE_TRANSPORT=ofi:<provider>, the devices in FARANDOLE_OFI_DEVICES, and use one "
                                "version of libfabric on all ranks",
                                membership.name_of(membership.rank), mine, membership.name_of(member),
                                std::string_view(theirs).substr(0, end)));
    }
    for (std::size_t i = 0; i < found.size(); ++i) addresses[i][static_cast<std::size_t>(member)] = found[i];
  }
  for (std::size_t i = 0; i < link.rails(); ++i) FDL_RETURN_IF_ERROR(link.rail(i).learn(addresses[i]));
  return {};
}

}  // namespace fdl
