// Succession describes what the nodes of an elastic job know of each other, so that one of them can take over when the
// node that leads is lost.
//
// Each node listens at an address of its own. The node that leads sends all others a node list: the present nodes with
// their addresses, its term, and its counts. A node that loses it asks for evidence at the leader's address, and then
// the other nodes of the node list in the order of their numbers. It follows one that belongs to a later term already,
// and waits for a smaller number that is alive; else it takes over itself, with the next term. The others introduce
// themselves to it with the workers that run on them and what these hold.
//
//   term 1   node 0 leads; 1 and 2 follow     node 0 is lost
//   term 2   node 1 takes over; 2 follows     node 0's successor asks nodes 1 and 2, and follows node 1
//
// Node 0 begins a job only if no other node that it can reach belongs to one already.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/coordinator/coordinator_wire.h"
#include "cli/elastic/generations.h"
#include "cli/elastic/node_port.h"
#include "cli/elastic/worker_listener.h"
#include "system/process/process.h"

namespace fdl {

struct NodeList {
  struct Entry {
    int number = 0;
    std::string address;  // empty: this node cannot take over
    std::string name;
    bool operator==(const Entry&) const = default;
  };
  int term = 0;  // 0: none, the node has not belonged to a job
  int leader = 0;
  Generations::Counts counts;
  std::vector<Entry> nodes;  // in the order of their numbers

  const Entry* find(int number) const;
  bool operator==(const NodeList&) const = default;
};

CoordinatorMessage message_of(const NodeList& node_list);
// Nothing if the message is malformed.
std::optional<NodeList> node_list_of(const CoordinatorMessage& message);

// A worker that runs on a node, or that has ended since the node lost its leader.
struct HeldWorker {
  int worker = 0;
  int local = 0;  // its local rank until it belongs to a generation
  Generations::Held held;
};

// Adds to a hello what the next leader must know of this node.
void add_to_hello(CoordinatorMessage& hello, const std::string& address, const NodeList& node_list,
                  const std::vector<HeldWorker>& workers);
// The workers of a hello. Nothing if they are malformed.
std::optional<std::vector<HeldWorker>> workers_of(const CoordinatorMessage& hello);

// Workers are numbered over the whole job: each term has its own range.
inline constexpr int kWorkersOfATerm = 1 << 20;
inline constexpr int kLastTerm = 1000;
inline constexpr int first_worker_of(int term) { return (term - 1) * kWorkersOfATerm; }

// What a node passes from the part that follows a leader to the part that leads.
struct Inheritance {
  struct Runner {
    int index = 0;  // in the supervisor
    int local = 0;
    Generations::Held held;
    int lost_rank = -1;  // of its request
  };
  int number = 0;              // of this node
  NodeList node_list;          // of the former leader; its term is 0 where a job begins
  std::vector<int> has_ended;  // numbers of nodes that are known to have ended
  std::string why;             // the end of the former leader
  std::unique_ptr<WorkerListener> listener;
  std::unique_ptr<NodePort> port;
  std::map<int, Runner> runners;                          // by worker
  std::vector<int> started;                               // the workers, indexed as the supervisor indexes them
  std::vector<std::pair<HeldWorker, Ending>> unreported;  // ends since the former leader was lost
};

}  // namespace fdl
