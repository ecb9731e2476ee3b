// TcpTransport's errors name the peer and what happened to its connection.
#include <fmt/format.h>

#include <cstring>

#include "contract/tags.h"
#include "transports/tcp/transport.h"

namespace fdl {

Status TcpTransport::lost(int peer, std::string_view what) const {
  const Member& member = membership_.members[static_cast<std::size_t>(peer)];
  return Status::blame(member.world_rank, member.host_name, Code::peer_lost,
                       fmt::format("tcp: {} {}", membership_.name_of(peer), what));
}

Status TcpTransport::undelivered(int peer) const {
  const Member& member = membership_.members[static_cast<std::size_t>(peer)];
  return Status::blame(
      member.world_rank, member.host_name, Code::transport,
      fmt::format("tcp: what {} has sent to {} has not arrived for {:g} s (twice "
                  "FARANDOLE_LOST_AFTER_S), although the connection is sound: something between the "
                  "two hosts holds it back",
                  membership_.name_of(peer), membership_.name_of(membership_.rank), deliveries_.limit_s()));
}

Status TcpTransport::failure_of(std::size_t index, Outcome outcome) const {
  const TcpStream& stream = *streams_[index];
  const int peer = peer_of(index);
  switch (outcome) {
    case Outcome::left:
      return lost(peer, "closed the connection: it has left");
    case Outcome::closed:
      return lost(peer, "closed the connection; see its log");
    case Outcome::broken:
      return lost(peer, fmt::format("does not answer any more: {}", std::strerror(stream.error_number())));
    case Outcome::garbage:
      return lost(peer, "sent bytes that are no slice: something between the hosts changes the data");
    case Outcome::forged:
      return tampered_between("slice over tcp", membership_.name_of(peer), membership_.name_of(membership_.rank));
    default:
      break;
  }
  const Member& sender = membership_.members[static_cast<std::size_t>(peer)];
  return Status::blame(
      sender.world_rank, sender.host_name, Code::mismatch,
      fmt::format("tcp: {} sent {} bytes (tag {:08x}) where {} expected {} bytes (tag {:08x}): the ranks called "
                  "different operations or counts{}",
                  membership_.name_of(peer), stream.arrived().bytes, stream.arrived().tag,
                  membership_.name_of(membership_.rank), stream.expected().bytes, stream.expected().tag,
                  describe_compressions(membership_.name_of(peer), stream.arrived().tag,
                                        membership_.name_of(membership_.rank), stream.expected().tag)));
}

}  // namespace fdl
