// One turn is one round of the coordinator, or the next connection of a round that is being sent.
#include "tests/simulation/coordinator_actor.h"

#include <algorithm>

namespace fdl::simulation {

CoordinatorActor::CoordinatorActor(Network& network, Process& process, const CoordinatorOptions& options,
                                   const CoordinatorClient::Hello& own)
    : Actor(network, process), membership_(options, "the simulated coordinator", own) {}

bool CoordinatorActor::accept(const End& end) {
  if (!is_serving_) return false;
  clients_[next_peer_++] = {end};
  wake();
  return true;
}

void CoordinatorActor::died() {
  is_serving_ = false;
  clients_.clear();
  batches_.clear();
}

void CoordinatorActor::stop(int64_t patience) {
  if (!is_serving_ || ends_at_ != kNever) return;
  simulation().tell("{}: the coordinator ends", process().name);
  ends_at_ = clock() + patience;
  membership_.end();
  wake();
}

void CoordinatorActor::turn() {
  if (!is_serving_) return;
  if (!batches_.empty()) return flush_next();
  std::vector<Peer> ready;
  for (const auto& [peer, client] : clients_) {
    if (client.end.has_news()) ready.push_back(peer);
  }
  if (!ready.empty()) {
    std::ranges::rotate(ready, ready.begin() + simulation().between(0, static_cast<int64_t>(ready.size()) - 1));
  }
  for (const Peer peer : ready) receive(peer);
  membership_.tick(clock());
  if (queue_batches()) return wake();
  if (ends_at_ != kNever && (membership_.all_know_of_end() || clock() >= ends_at_)) return end();
  wake_at(moment_of(std::min(membership_.next().moment_ns(), ends_at_)));
}

void CoordinatorActor::receive(Peer peer) {
  const auto found = clients_.find(peer);
  if (found == clients_.end()) return;
  std::vector<Packet> packets;
  const End::State state = found->second.end.receive(packets);
  for (const Packet& packet : packets) {
    if (!handle(peer, found->second, packet.bytes)) return close(peer);
  }
  if (state != End::State::open) close(peer);
}

bool CoordinatorActor::handle(Peer peer, Client& client, const std::string& bytes) {
  auto message = decode(bytes);
  if (!message.ok()) {
    simulation().violated("the coordinator cannot read a message: " + message.status().text());
    return false;
  }
  if (client.is_member) {
    const Status status = membership_.receive(peer, message.take(), clock());
    if (!status.ok()) simulation().violated("the coordinator refuses a message: " + status.text());
    return status.ok();
  }
  client.is_member = membership_.greet(peer, message->members.front(), clock(), message->number);
  return true;
}

// Groups the messages of a round by connection, in the order of the first message to each. False: there are none.
bool CoordinatorActor::queue_batches() {
  const auto outgoing = membership_.take_outgoing();
  MessageEncoder encoder;
  hang_ups_ = membership_.take_hang_ups();
  for (const JobMembership::Outgoing& one : outgoing) {
    auto batch = std::ranges::find(batches_, one.peer, &Batch::peer);
    if (batch == batches_.end()) batch = batches_.insert(batches_.end(), {one.peer, {}});
    batch->messages.push_back(encoder.encode(one.message));
  }
  if (batches_.empty() && !hang_ups_.empty()) batches_.push_back({0, {}});
  return !batches_.empty();
}

void CoordinatorActor::flush_next() {
  const Batch batch = std::move(batches_.front());
  batches_.pop_front();
  if (const auto found = clients_.find(batch.peer); found != clients_.end()) {
    for (const std::string& bytes : batch.messages) found->second.end.send({.bytes = bytes});
  }
  if (batches_.empty()) {
    for (const Peer peer : std::exchange(hang_ups_, {})) close(peer);
  }
  wake();
}

void CoordinatorActor::close(Peer peer) {
  const auto found = clients_.find(peer);
  if (found == clients_.end()) return;
  found->second.end.close();
  clients_.erase(found);
  membership_.closed(peer);
}

void CoordinatorActor::end() {
  is_serving_ = false;
  for (const auto& [peer, client] : clients_) client.end.close();
  clients_.clear();
  for (Actor* actor : process().actors) actor->wake();  // another thread of the process may wait for this one
}

}  // namespace fdl::simulation
