// ElasticJob: lines become events of Generations, and what it decides becomes lines, a hub and actions.
#include "program/elastic_job.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <set>

#include "base/log.h"
#include "program/run_log.h"
#include "program/subcommands.h"
#include "system/socket.h"

namespace fdl {
namespace {

// Tokens, counted from the first.
constexpr uint64_t kDoor = 0;
constexpr uint64_t kCountFile = 1;
constexpr uint64_t kFirstConnection = 2;
constexpr std::size_t kLongestLine = 256;
constexpr std::size_t kMostConnections = 4096;
constexpr double kPauseWithoutDescriptors_s = 0.1;
// The hub tells by itself who is lost, but not of one that died before it came there, for which the others would wait.
constexpr double kHubPatience_s = 1;
// A member that others were told is lost (stopped, swapped out, cut off) may still wake up and come.
constexpr double kSuspectPatience_s = 5;

void tell(const std::string& text) { say("elastic", text); }

}  // namespace

Result<std::unique_ptr<ElasticJob>> ElasticJob::open(const Options& options) {
  FDL_ASSIGN_OR_RETURN(auto door, HubDoor::open("unix"));
  std::optional<WatchedFile> count_file;
  if (!options.count_file.empty()) {
    FDL_ASSIGN_OR_RETURN(count_file, WatchedFile::open(options.count_file));
  }
  return std::unique_ptr<ElasticJob>(new ElasticJob(options, std::move(door), std::move(count_file)));
}

Status ElasticJob::watch(Poller& poller, uint64_t first_token) {
  poller_ = &poller;
  first_token_ = first_token;
  next_token_ = first_token + kFirstConnection;
  if (count_file_) FDL_RETURN_IF_ERROR(poller.add(count_file_->fd(), first_token + kCountFile));
  return poller.add(door_->fd(), first_token + kDoor);
}

// ---- The door
// --------------------------------------------------------------------------------------------------------------

void ElasticJob::serve(uint64_t token) {
  if (token == first_token_ + kDoor) {
    accept_all();
  } else if (token == first_token_ + kCountFile) {
    read_count();
  } else {
    receive(token);
  }
}

void ElasticJob::read_count() {
  if (!count_file_->changed()) return;
  auto text = count_file_->read();
  if (!text.ok()) return tell(text.status().text());
  int count = 0;
  char rest = 0;
  if (std::sscanf(text->c_str(), "%d %c", &count, &rest) != 1 || count < 1) {
    const std::string quoted = text->substr(0, std::min<std::size_t>(text->find('\n'), 40));
    return tell(
        fmt::format("'{}' says '{}', which is no number of ranks; nothing changes", options_.count_file, quoted));
  }
  const int before = generations_.wanted();
  generations_.want(count);
  if (generations_.wanted() != before) tell(fmt::format("{} ranks are wanted, not {}", generations_.wanted(), before));
}

void ElasticJob::accept_all() {
  while (true) {
    auto fd = accept_one(door_->fd());
    if (!fd.ok()) {
      // Who knocks stays in the kernel's queue, which would wake us at once: look the other way for a moment.
      log_warning("the door of the elastic job: {}", fd.status().text());
      poller_->remove(door_->fd());
      look_again_ = Deadline::after_seconds(kPauseWithoutDescriptors_s);
      return;
    }
    if (!*fd) return;
    if (HubDoor::is_foreign(fd->get()) || connections_.size() >= kMostConnections) continue;
    const uint64_t token = next_token_++;
    if (!poller_->add(fd->get(), token).ok()) continue;
    connections_[token].fd = fd.take();
  }
}

void ElasticJob::receive(uint64_t token) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  std::array<char, kLongestLine> buffer;
  const ssize_t count = ::recv(connection.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  bool well = count > 0;
  if (well) {
    connection.unread.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end; well && (end = connection.unread.find('\n')) != std::string::npos;) {
      const std::string line = connection.unread.substr(0, end);
      connection.unread.erase(0, end + 1);
      well = obey(connection, line);
    }
    well = well && connection.unread.size() < kLongestLine;
  }
  if (well) return;
  poller_->remove(connection.fd.get());
  connections_.erase(found);
}

// False: it does not speak as a worker does.
bool ElasticJob::obey(Connection& connection, const std::string& line) {
  int worker = -1;
  int lost_rank = -1;
  if (std::sscanf(line.c_str(), "join %d %d", &worker, &lost_rank) != 2 || !generations_.runs(worker)) return false;
  for (const auto& [token, other] : connections_) {
    if (other.worker == worker && &other != &connection) return false;  // a process that it started itself
  }
  connection.worker = worker;
  join(worker, lost_rank);
  return true;
}

void ElasticJob::join(int worker, int lost_rank) {
  if (generations_.is_member(worker)) {
    if (patience_.is_never()) patience_ = Deadline::after_seconds(options_.patience_s);
    const auto lost = generations_.worker_at(lost_rank);
    if (lost && !generations_.has_asked(*lost) && *lost != worker) {
      suspects_.emplace(*lost, Deadline::after_seconds(kSuspectPatience_s));
    }
  }
  suspects_.erase(worker);
  generations_.asked(worker);
  if (generations_.has_finished()) say(worker, "end other ranks have finished, so that no generation follows");
  if (stopped_ || gave_up_) say(worker, "end " + why_ended_);
}

void ElasticJob::say(int worker, const std::string& line) {
  for (auto& [token, connection] : connections_) {
    if (connection.worker != worker) continue;
    // Far less than the socket takes; one that does not read what it was told before is about to be ended anyway.
    const std::string text = line + "\n";
    if (::send(connection.fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      log_warning("worker {} cannot be told '{}'", worker, line);
    }
  }
}

// ---- Workers
// ---------------------------------------------------------------------------------------------------------------

void ElasticJob::start_one() {
  std::set<int> taken;
  for (const auto& [worker, label] : labels_) taken.insert(label);
  int rank = 0;
  while (taken.contains(rank)) ++rank;
  const int worker = generations_.start();
  labels_[worker] = rank;
  const std::string size = std::to_string(options_.limits.ranks);
  actions_.push_back({.kind = Action::Kind::start,
                      .worker = worker,
                      .rank = rank,
                      .variables = {{"FARANDOLE_ELASTIC", door_->address()},
                                    {"FARANDOLE_WORKER", std::to_string(worker)},
                                    {"FARANDOLE_RANK", std::to_string(rank)},
                                    {"FARANDOLE_SIZE", size},
                                    {"FARANDOLE_LOCAL_RANK", std::to_string(rank)},
                                    {"FARANDOLE_LOCAL_SIZE", size},
                                    {"FARANDOLE_JOB_KEY", options_.hub.job_key},
                                    {"HOROVOD_ELASTIC", "1"},
                                    {"PYTHONUNBUFFERED", "1"}}});
}

bool ElasticJob::ended(int worker, const Ending& ending) {
  labels_.erase(worker);
  suspects_.erase(worker);
  if (!ending.success()) {
    last_failure_ = ending.exit_code();
    if (first_failure_ == 0) first_failure_ = last_failure_;
  }
  const bool was_member = generations_.is_member(worker);
  const bool is_loss = generations_.ended(worker, ending.success());
  if (is_loss && was_member && hub_ends_.is_never()) hub_ends_ = Deadline::after_seconds(kHubPatience_s);
  if (generations_.has_finished()) end_waiting("other ranks have finished, so that no generation follows");
  return is_loss;
}

void ElasticJob::stop(const std::string& why) {
  stopped_ = true;
  why_ended_ = why;
  end_waiting(why);
}

void ElasticJob::end_waiting(const std::string& why) {
  for (const auto& [worker, label] : labels_) {
    if (generations_.has_asked(worker)) say(worker, "end " + why);
  }
}

// ---- What follows
// ----------------------------------------------------------------------------------------------------------

Deadline ElasticJob::next() const {
  Deadline next = patience_.earlier(look_again_).earlier(hub_ends_);
  for (const auto& [worker, until] : suspects_) next = next.earlier(until);
  return next;
}

void ElasticJob::tick() {
  if (look_again_.passed() && poller_->add(door_->fd(), first_token_ + kDoor).ok()) look_again_ = Deadline::never();
  if (hub_ends_.passed()) {
    hub_ends_ = Deadline::never();
    hub_.reset();
  }
  const auto end = [&](int worker, const char* why) {
    tell(fmt::format("rank {} {}, and is ended", labels_.at(worker), why));
    actions_.push_back({.kind = Action::Kind::kill, .worker = worker});
  };
  std::erase_if(suspects_, [&](const auto& one) {
    if (!one.second.passed()) return false;
    end(one.first, "was lost by the others, and does not come to the next generation");
    return true;
  });
  if (!patience_.passed()) return;
  patience_ = Deadline::never();
  for (const auto& [worker, label] : labels_) {
    if (!generations_.has_asked(worker))
      end(worker, "has kept the others waiting for the next generation for too long");
  }
}

std::vector<ElasticJob::Action> ElasticJob::take_actions() {
  if (!stopped_ && !gave_up_) {
    if (const auto& reason = generations_.give_up()) {
      gave_up_ = true;
      why_ended_ = reason->text;
      end_waiting(reason->text);
      actions_.push_back({.kind = Action::Kind::give_up, .exit_code = exit_code(reason->reason), .text = reason->text});
    } else {
      while (generations_.to_start() > 0) start_one();
      begin_if_all_asked();
      tell_changes();
    }
  }
  return std::exchange(actions_, {});
}

int ElasticJob::exit_code(Generations::Reason reason) const {
  switch (reason) {
    case Generations::Reason::too_few:
      return kExitTooFew;
    case Generations::Reason::all_failed:
      return first_failure_;
    case Generations::Reason::failed_at_end:
      return last_failure_;
    case Generations::Reason::no_state:
    case Generations::Reason::too_many_resets:
      return kExitPeerLost;
  }
  return kExitBug;
}

void ElasticJob::begin_if_all_asked() {
  const auto world = generations_.begin();
  if (!world) return;
  patience_ = Deadline::never();
  suspects_.clear();
  told_.clear();
  for (const int worker : world->dismissed) say(worker, "removed");
  hub_ends_ = Deadline::never();
  hub_.reset();  // nobody is in the generation before any more
  HubOptions options = options_.hub;
  options.size = static_cast<int>(world->workers.size());
  options.address = "unix";
  auto hub = Hub::open(options);
  if (!hub.ok()) {
    gave_up_ = true;
    why_ended_ = hub.status().while_doing("serving the next generation").text();
    for (const int worker : world->workers) say(worker, "end " + why_ended_);
    actions_.push_back({.kind = Action::Kind::give_up, .exit_code = kExitRendezvous, .text = why_ended_});
    return;
  }
  hub_ = std::make_unique<HubThread>(hub.take());
  if (world->generation > 1) tell(fmt::format("generation {} begins with {} ranks", world->generation, options.size));
  for (int rank = 0; rank < options.size; ++rank) {
    const int worker = world->workers[static_cast<std::size_t>(rank)];
    labels_[worker] = rank;
    actions_.push_back({.kind = Action::Kind::rename, .worker = worker, .rank = rank});
    say(worker, fmt::format("world {} {} {} {}?hub=1", world->generation, rank, options.size, hub_->address()));
  }
}

// Those who wait are news only when they are ready, so that nobody waits for them.
void ElasticJob::tell_changes() {
  const char* news = generations_.somebody_must_go() ? "hosts removed"
                     : generations_.somebody_waits() ? "hosts added"
                                                     : "";
  if (*news == '\0' || told_ == news) return;
  told_ = news;
  for (const int worker : generations_.members()) say(worker, news);
}

}  // namespace fdl
