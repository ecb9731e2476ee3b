// TcpTransport closes idle connections while the process has more of them than its limit of descriptors allows. The
// rank that has too many begins, and its peer follows as soon as it has sent what was queued:
//
//   rank 5                                     rank 2
//   rest   ------------------------------->    receives on another connection from now on
//   receives on another connection             <-------------------------------   rest, behind the last slice
//   closes                                     closes
//
// Either rank may send again at any time: it demands another connection, by its connector and that of the peer, whether
// or not the peer's program does anything. A stream rests only if none is left from before it, so a rank has at most
// two of a place, and a third one that waits for its turn: the peer may have closed the first one already.
#include <algorithm>
#include <utility>
#include <vector>

#include "transports/tcp/transport.h"

namespace fdl {

void TcpTransport::make_stream(std::size_t index) {
  streams_[index] = std::make_unique<TcpStream>();
  if (!endpoint_) return;
  streams_[index]->send_after(rested_[index].sent);
  streams_[index]->receive_after(rested_[index].received);
}

// Makes the stream that goes on for this one. A direction that has not rested yet is passed on later.
void TcpTransport::make_next(std::size_t index) {
  const std::size_t next = index + half_;
  if (streams_[next]) return;
  streams_[next] = std::make_unique<TcpStream>();
  TcpStream& stream = *streams_[index];
  if (stream.rests()) streams_[next]->send_after(stream.sent());
  if (stream.peer_rests) streams_[next]->take_receives_of(stream);
}

// Closes those of this communicator that were not used for longest.
void TcpTransport::close_idle_connections() {
  const int excess = endpoint_->budget().excess();
  if (excess <= 0) return;
  std::vector<std::size_t> idle;
  for (const std::size_t index : attached_) {
    if (may_rest(index)) idle.push_back(index);
  }
  const auto count = std::min(idle.size(), static_cast<std::size_t>(excess));
  const auto end = idle.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(idle.begin(), end, idle.end(), [&](std::size_t a, std::size_t b) {
    return calls_ - streams_[a]->last_use > calls_ - streams_[b]->last_use;
  });
  for (auto index = idle.begin(); index != end; ++index) rest(*index);
}

bool TcpTransport::may_rest(std::size_t index) const {
  if (failed(index) || !connected(index) || streams_[index + half_]) return false;
  const TcpStream& stream = *streams_[index];
  return !stream.rests() && !stream.peer_rests && !stream.peer_left && !stream.sending() && !stream.receiving();
}

void TcpTransport::rest(std::size_t index) {
  TcpStream& stream = *streams_[index];
  stream.rest();
  stream.watches_early = true;  // for the rest of the peer
  endpoint_->budget().began_to_close();
  if (streams_[index + half_]) streams_[index + half_]->send_after(stream.sent());
  mark_busy(index);
}

// The peer sends nothing more here. This rank follows when it has sent what is queued.
void TcpTransport::note_peer_rests(std::size_t index) {
  TcpStream& stream = *streams_[index];
  stream.peer_rests = true;
  stream.watches_early = false;
  const std::size_t next = index + half_;
  const bool receives = stream.receiving();
  if (streams_[next]) {
    streams_[next]->take_receives_of(stream);
  } else if (receives) {
    make_next(index);
    endpoint_->demand_again(peer_of(index), number_of(index), rested_[index].generation + 1);
  }
  if (receives) mark_busy(next);
  mark_busy(index);
}

// Closes the connection once both ends rest; the stream that goes on takes its place. True if it did.
bool TcpTransport::retire_if_both_rest(std::size_t index) {
  TcpStream& stream = *streams_[index];
  if (!stream.peer_rests || !stream.has_rested()) return false;
  const std::size_t next = index + half_;
  rested_[index] = {stream.sent(), stream.received(), rested_[index].generation + 1};
  if (stream.in_poller) poller_.remove(stream.fd());
  note_closed(index);
  mark_idle(index);
  streams_[index] = std::exchange(streams_[next], nullptr);
  if (streams_[index]) take_place_of_rested(index);
  if (auto early = early_.extract(index)) take_connection(index, std::move(early.mapped()));
  return true;
}

// The stream of the second half has moved to this index.
void TcpTransport::take_place_of_rested(std::size_t index) {
  mark_idle(index + half_);
  TcpStream& stream = *streams_[index];
  stream.watches_early = true;  // a rest may have come that was no use before
  if (stream.sending() || stream.receiving()) mark_busy(index);
  if (stream.fd() < 0 || !stream.in_poller) return;
  poller_.remove(stream.fd());  // its token changes
  stream.watch = {};
  const Status added = poller_.add(stream.fd(), index, false, false);
  if (added.ok()) watch(index);
  if (!added.ok()) fail(peer_of(index), added.while_doing("watching " + membership_.name_of(peer_of(index))));
}

// Closes a connection, if there is one, and counts it.
void TcpTransport::note_closed(std::size_t index) {
  TcpStream& stream = *streams_[index];
  if (stream.fd() < 0) return;
  stream.close();
  if (!endpoint_) return;
  endpoint_->budget().closed();
  if (stream.rests()) endpoint_->budget().ended_to_close();
}

}  // namespace fdl
