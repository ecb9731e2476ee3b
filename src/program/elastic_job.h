// ElasticJob: the door at which the workers of an elastic job ask who they are, and the hub of the present generation.
//
// The supervisor owns the processes and this object; both live in one thread and sleep in one epoll set. A worker says
//     join WORKER RANK      RANK: whom it saw lost, or -1
// and is answered, when all have asked,
//     world GENERATION RANK SIZE RENDEZVOUS    or    removed    or    end WHY
// It is told `hosts added` or `hosts removed` when a new generation is wanted though nothing is wrong. One line each,
// over an abstract Unix socket that only the same user may enter.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "program/generations.h"
#include "program/hub_thread.h"
#include "system/poller.h"
#include "system/process.h"
#include "system/watched_file.h"
#include "world/hub_door.h"

namespace fdl {

class ElasticJob {
 public:
  struct Options {
    Generations::Limits limits;
    HubOptions hub;           // of each generation; its size and address are set anew
    std::string count_file;   // where the number of ranks that are wanted is written; empty: it stays as it is
    double patience_s = 600;  // how long members wait for one that does not come before it is ended
  };
  // What the supervisor is to do.
  struct Action {
    enum class Kind { start, rename, kill, give_up };
    Kind kind;
    int worker = -1;                               // start: the count of those started before it
    int rank = -1;                                 // start, rename: under which number it speaks
    int exit_code = 0;                             // give_up
    std::string text;                              // give_up
    std::map<std::string, std::string> variables;  // start
  };

  static Result<std::unique_ptr<ElasticJob>> open(const Options& options);

  // The tokens from `first_token` on belong to this object.
  Status watch(Poller& poller, uint64_t first_token);
  void serve(uint64_t token);

  bool ended(int worker, const Ending& ending);  // false: that is no loss
  // The job is being ended for another reason: nobody is started any more.
  void stop(const std::string& why);

  Deadline next() const;
  void tick();
  std::vector<Action> take_actions();

 private:
  struct Connection {
    UniqueFd fd;
    int worker = -1;
    std::string unread;
  };

  ElasticJob(const Options& options, std::unique_ptr<HubDoor> door, std::optional<WatchedFile> count_file)
      : options_(options), door_(std::move(door)), count_file_(std::move(count_file)), generations_(options.limits) {}
  void read_count();
  void accept_all();
  void receive(uint64_t token);
  bool obey(Connection& connection, const std::string& line);
  void join(int worker, int lost_rank);
  void say(int worker, const std::string& line);
  void begin_if_all_asked();
  void tell_changes();
  void end_waiting(const std::string& why);
  int exit_code(Generations::Reason reason) const;
  void start_one();

  const Options options_;
  const std::unique_ptr<HubDoor> door_;
  std::optional<WatchedFile> count_file_;
  Generations generations_;
  Poller* poller_ = nullptr;
  uint64_t first_token_ = 0;
  uint64_t next_token_ = 0;
  std::map<uint64_t, Connection> connections_;
  std::map<int, int> labels_;  // of the workers that run
  std::unique_ptr<HubThread> hub_;
  Deadline hub_ends_ = Deadline::never();  // once a member is lost
  std::map<int, Deadline> suspects_;       // members that others saw lost: until when they may still come
  Deadline patience_ = Deadline::never();
  Deadline look_again_ = Deadline::never();  // at the door
  std::string told_;                         // what members were told of changes since the generation began
  int first_failure_ = 0;
  int last_failure_ = 0;
  bool stopped_ = false;
  bool gave_up_ = false;
  std::string why_ended_;
  std::vector<Action> actions_;
};

}  // namespace fdl
