// One turn is one round of the coordinator, or the next connection of a round that is being sent.
#include "tests/simulation/coordinator_actor.h"

#include <algorithm>

namespace fdl::simulation {

CoordinatorActor::CoordinatorActor(Network& network, Process& process, const CoordinatorOptions& options,
                                   const CoordinatorClient::Hello& own)
    : Actor(network, process), rounds_(options, "the simulated coordinator", own, *this) {}

bool CoordinatorActor::accept(const End& end) {
  if (!is_serving_) return false;
  clients_[rounds_.add(false, clock())] = {end};
  wake();
  return true;
}

void CoordinatorActor::died() {
  is_serving_ = false;
  served_until_ = std::min(served_until_, simulation().now());
  clients_.clear();
  outputs_.clear();
}

void CoordinatorActor::stop(int64_t patience) {
  if (!is_serving_ || ends_at_ != kNever) return;
  simulation().tell("{}: the coordinator ends", process().name);
  ends_at_ = clock() + patience;
  served_until_ = simulation().now();
  rounds_.end();
  wake();
}

void CoordinatorActor::turn() {
  if (!is_serving_) return;
  if (!outputs_.empty()) return write_next();
  std::vector<Peer> ready;
  for (const auto& [peer, client] : clients_) {
    if (client.end.has_news()) ready.push_back(peer);
  }
  if (!ready.empty()) {
    std::ranges::rotate(ready, ready.begin() + simulation().between(0, static_cast<int64_t>(ready.size()) - 1));
  }
  for (const Peer peer : ready) receive(peer);
  rounds_.finish(clock());
  if (!outputs_.empty()) return wake();
  if (ends_at_ != kNever && (membership().all_know_of_end() || clock() >= ends_at_)) return end();
  wake_at(moment_of(std::min(rounds_.next().moment_ns(), ends_at_)));
}

void CoordinatorActor::receive(Peer peer) {
  const auto found = clients_.find(peer);
  if (found == clients_.end()) return;
  std::vector<Packet> packets;
  const End::State state = found->second.end.receive(packets);
  std::vector<CoordinatorMessage> messages;
  for (const Packet& packet : packets) {
    auto message = decode(packet.bytes);
    if (!message.ok()) {
      simulation().violated("the coordinator cannot read a message: " + message.status().text());
      continue;
    }
    messages.push_back(message.take());
  }
  const int64_t before = rounds_.strangers();
  rounds_.receive(peer, std::move(messages),
                  state == End::State::open ? CoordinatorRounds::End::none : CoordinatorRounds::End::closed, clock());
  if (rounds_.strangers() != before) simulation().violated("the coordinator refuses a message");
}

void CoordinatorActor::queue(Peer peer, const SharedMessage& message) {
  if (const auto found = clients_.find(peer); found != clients_.end()) found->second.queued.push_back(message->bytes());
}

void CoordinatorActor::flush(Peer peer) {
  const auto found = clients_.find(peer);
  if (found == clients_.end()) return;
  outputs_.push_back({.end = found->second.end, .messages = std::exchange(found->second.queued, {})});
}

void CoordinatorActor::close(Peer peer) {
  const auto found = clients_.find(peer);
  if (found == clients_.end()) return;
  outputs_.push_back({.end = found->second.end, .closes = true});
  clients_.erase(found);
  rounds_.closed(peer);
}

bool CoordinatorActor::is_silent(Peer peer) const { return clients_.contains(peer); }

void CoordinatorActor::write_next() {
  const Output output = std::move(outputs_.front());
  outputs_.pop_front();
  for (const std::string& bytes : output.messages) output.end.send({.bytes = bytes});
  if (output.closes) output.end.close();
  wake();
}

void CoordinatorActor::end() {
  is_serving_ = false;
  for (const auto& [peer, client] : clients_) client.end.close();
  clients_.clear();
  for (Actor* actor : process().actors) actor->wake();  // another thread of the process may wait for this one
}

}  // namespace fdl::simulation
