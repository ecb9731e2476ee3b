// Network connects simulated processes on simulated hosts. It does not interpret the messages.
//
// A connection keeps the order of its messages; nothing is promised between connections. Each direction has a buffer of
// a few messages. What does not fit stays in the sending process, which sends it on when it runs, and takes it along
// when it dies. A process that ends closes its connections behind what the buffers have. Packets between hosts that are
// cut off from each other arrive after the cut, and a connection ends if a cut lasts for longer than its time-out.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/simulation.h"

namespace fdl::simulation {

class Network;
class Actor;

// A process of a host. It runs, is paused, or has ended.
struct Process {
  std::string name;
  int host = 0;
  bool is_alive = true;
  bool was_killed = false;  // by a fault
  int64_t paused_until = 0;
  int64_t longest_pause = 0;
  // While it was stopped or cut off, the other end of a full connection ended with what did not fit.
  bool has_missed = false;
  std::vector<Actor*> actors;
};

// What a connection carries: bytes or an object, and a number that says what they are.
struct Packet {
  int kind = 0;
  std::string bytes{};
  std::shared_ptr<const void> object{};
};

class Connection;

// One process' end of a connection.
struct End {
  enum class State {
    open,
    closed,   // by the other end, or by a reset
    cut_off,  // because nothing was acknowledged for too long
  };
  std::shared_ptr<Connection> connection;
  int side = 0;

  explicit operator bool() const { return connection != nullptr; }
  bool operator==(const End&) const = default;
  void send(Packet packet) const;
  // Takes what has arrived. The state is what follows behind it.
  State receive(std::vector<Packet>& packets) const;
  bool has_news() const;
  // What does not fit into the buffer yet.
  std::size_t unsent() const;
  void close() const;
};

// A thread of a process. It runs for a moment when it is woken: a turn. It outlives the network.
class Actor {
 public:
  Actor(Network& network, Process& process) : network_(network), process_(process) { process.actors.push_back(this); }
  virtual ~Actor() = default;
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  virtual void turn() = 0;
  // Another process connects to this one. False: nothing listens here.
  virtual bool accept(const End& /*end*/) { return false; }
  // The process has been killed, or has ended. No turn follows.
  virtual void died() {}

  void wake() { wake_at(0); }
  // At a moment of the simulation; an earlier one of an earlier call stays.
  void wake_at(int64_t moment);
  // This process' clock, which differs from that of other hosts.
  int64_t clock() const;
  // The moment of the simulation at which this host's clock shows `moment`.
  int64_t moment_of(int64_t clock) const;
  Process& process() const { return process_; }
  Network& network() const { return network_; }
  Simulation& simulation() const;

 private:
  void run();

  Network& network_;
  Process& process_;
  int64_t wakes_at_ = kNever;
};

class Network {
 public:
  struct Options {
    int hosts = 1;
    int64_t slowest = 2 * kMs;       // usual delay between hosts
    int buffer = 64;                 // messages of one direction of a connection
    int64_t timeout = 15 * kSecond;  // of a connection that is cut off, as survive_outages() sets it
    int64_t hiccup = 3 * kMs;        // for how long a thread may wait for a processor
  };
  Network(Simulation& simulation, const Options& options);

  Simulation& simulation() { return simulation_; }
  const Options& options() const { return options_; }

  Process& add_process(const std::string& name, int host);
  const std::deque<Process>& processes() const { return processes_; }

  // ---- what processes do ----
  // `refused`: nothing listens there. `made` is called in neither case while the hosts are cut off from each other.
  void connect(Actor& from, Actor* to, std::function<void(End)> made, std::function<void()> refused);
  // The process ends by itself, or is killed. Connections close behind what the buffers have.
  void end(Process& process);
  // The simulation is over, also for processes that have not ended. Nothing is sent any more.
  void finish() { is_finished_ = true; }

  // ---- faults ----
  void kill(Process& process);
  void pause(Process& process, int64_t how_long);
  // Of a host with all of its processes, as of a virtual machine. Its clock stands still, or goes on.
  void pause_host(int host, int64_t how_long, bool clock_stands);
  void jump_clock(int host, int64_t forward);
  // Packets from one host to the other are dropped from now on.
  void cut(int from, int to, int64_t how_long);
  bool is_cut(int from, int to) const;
  // Whether a cut has dropped packets that may not have been sent again.
  bool repeats_packets(int from, int to) const;
  // Since when any direction between both is cut; kNever: it is not.
  int64_t cut_since(int a, int b) const;
  // Whether a cut of at least this length was ever between them.
  bool was_cut_for(int a, int b, int64_t how_long) const;
  void reset(const std::shared_ptr<Connection>& connection);
  // Slows all packets down until then.
  void slow_down(int64_t until, int64_t delay);
  std::vector<std::shared_ptr<Connection>> open_connections() const;

  int64_t clock_offset(int host) const { return hosts_[static_cast<std::size_t>(host)].offset; }

 private:
  friend class Actor;
  friend class Connection;
  friend struct End;
  struct Host {
    int64_t offset = 0;
  };
  struct Cut {
    int64_t since = 0;
    int64_t until = 0;
  };
  int64_t delay(int from, int to);
  void wake_all_of(int host);
  void settle(Process& process);

  Simulation& simulation_;
  const Options options_;
  std::deque<Process> processes_;
  std::vector<Host> hosts_;
  std::map<std::pair<int, int>, Cut> cuts_;             // the latest of each direction
  std::map<std::pair<int, int>, int64_t> longest_cut_;  // of an unordered pair
  int64_t slow_until_ = 0;
  int64_t slow_delay_ = 0;
  std::map<uint64_t, std::shared_ptr<Connection>> connections_;  // by number
  bool is_finished_ = false;
  std::set<uint64_t> full_;  // those with messages that did not fit
  uint64_t made_ = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Network& network, Actor& a, Actor& b, uint64_t number)
      : number_(number), network_(network), sides_{{&a}, {&b}} {}
  Actor& actor(int side) const { return *sides_[side].actor; }
  bool is_open() const { return !sides_[0].is_closed && !sides_[1].is_closed; }
  uint64_t number() const { return number_; }

 private:
  friend class Network;
  friend struct End;
  struct Flying {
    int64_t arrives = 0;
    Packet packet{};
    bool is_end = false;
  };
  // What goes to this side.
  struct Side {
    Actor* actor;
    std::deque<Packet> unsent{};  // in the other process
    std::deque<Flying> flying{};
    std::deque<Packet> arrived{};
    End::State state = End::State::open;  // behind what has arrived
    bool is_closed = false;               // by this side's own process
    bool is_flying = false;               // an event for the first of `flying` is pending
    int64_t last_arrival = 0;
  };
  void push(int to, Flying flying);
  void fill(int to);
  void schedule(int to);
  void deliver(int to);
  void close(int side);
  void break_at(int side, End::State how);

  const uint64_t number_;
  Network& network_;
  Side sides_[2];
};

}  // namespace fdl::simulation
