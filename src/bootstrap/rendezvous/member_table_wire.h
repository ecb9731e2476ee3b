// Encodes the table of members, and lists of hosts, as parts of the coordinator's messages.
//
// A job of p ranks sends p tables, and authenticates the bytes of each. So hosts are packed where they can be: names
// one behind the other, a boot id as 16 bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/coordinator_generated.h"
#include "bootstrap/rendezvous/member_table.h"
#include "bootstrap/rendezvous/wire_budget.h"

namespace fdl {

using WireHosts = flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<coordinator_wire::Host>>>;
using WireTexts = flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>>;

WireTexts encode_texts(flatbuffers::FlatBufferBuilder& builder, const std::vector<std::string>& texts);
WireHosts encode_hosts(flatbuffers::FlatBufferBuilder& builder, const std::vector<HostRanks>& hosts);
flatbuffers::Offset<coordinator_wire::MemberTable> encode_table(flatbuffers::FlatBufferBuilder& builder,
                                                                const std::optional<MemberTable>& table);

// Both return false for what encode_hosts() and encode_table() do not write, such as a range without ranks or with
// ranks beyond the limit of a job.
bool decode_hosts(const flatbuffers::Vector<flatbuffers::Offset<coordinator_wire::Host>>* hosts, Budget& budget,
                  std::vector<HostRanks>& decoded);
bool decode_table(const coordinator_wire::MemberTable* table, Budget& budget, std::optional<MemberTable>& decoded);

// The 16 bytes of a boot id as Linux writes it, "3f0e4a5c-..." in lower case; nothing for any other text.
std::optional<std::vector<uint8_t>> bytes_of_boot_id(std::string_view text);

}  // namespace fdl
