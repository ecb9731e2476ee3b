// A step that concerns other ranks only is left out.
#include "simulate/control/start_program.h"

#include <fmt/core.h>

#include <string>
#include <utility>

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

CoordinatorMessage publish(std::string key, std::string value) {
  CoordinatorMessage message{.kind = Kind::publish};
  message.key = std::move(key);
  message.value = std::move(value);
  return message;
}

CoordinatorMessage fetch(std::string key) {
  CoordinatorMessage message{.kind = Kind::fetch};
  message.key = std::move(key);
  return message;
}

// Of the ranks first, first + step, ... below `end`.
CoordinatorMessage fetch_many(std::string prefix, int first, int end, int step, int64_t timeout_ns) {
  CoordinatorMessage message{.kind = Kind::fetch_many};
  message.key = std::move(prefix);
  message.number = timeout_ns;
  for (int rank = first; rank < end; rank += step) message.ranks.push_back(rank);
  return message;
}

// As long as the name of a Unix socket with random digits.
constexpr const char* kUnixAddress = "unix:@farandole-0123456789abcdef0123456789abcdef";

}  // namespace

std::optional<CoordinatorMessage> StartProgram::next(int64_t timeout_ns) {
  while (step_ < static_cast<int>(Step::end)) {
    const Step step{step_};
    if (step == Step::publish_socket) reached_ = 1 + static_cast<int>(Milestone::table);
    if (step == Step::publish_memory) reached_ = 1 + static_cast<int>(Milestone::hosts);
    if (step == Step::publish_made) reached_ = 1 + static_cast<int>(Milestone::memory);
    ++step_;
    if (auto message = request(step, timeout_ns)) return message;
  }
  reached_ = kMilestones;
  return std::nullopt;
}

std::optional<CoordinatorMessage> StartProgram::request(Step step, int64_t timeout_ns) const {
  if (step == Step::wait) {
    CoordinatorMessage message{.kind = Kind::wait};
    message.number = timeout_ns;
    return message;
  }
  if (step == Step::publish_address) {
    if (cluster_->hosts == 1) return std::nullopt;
    return publish(fmt::format("connections/tcp/{}", rank_), "10.100.100.100:40000");
  }
  if (step >= Step::publish_made) return request_of_commit(step, timeout_ns);
  return shares_host() ? request_about_hosts(step, timeout_ns) : std::nullopt;
}

// find_hosts(), and the segments of shared memory.
std::optional<CoordinatorMessage> StartProgram::request_about_hosts(Step step, int64_t timeout_ns) const {
  const int end = leader() + cluster_->ranks_per_host;
  const auto trial = [this](const char* what) { return fmt::format("world/hosts/{}/{}", leader(), what); };
  const auto segment = [this](const char* what) { return fmt::format("comm/all/{}/{}", what, leader()); };
  const auto of_leader = [this](CoordinatorMessage message) {
    return leads() ? std::optional(std::move(message)) : std::nullopt;
  };
  const auto of_others = [this](CoordinatorMessage message) {
    return leads() ? std::nullopt : std::optional(std::move(message));
  };
  switch (step) {
    case Step::publish_socket:
      return of_leader(publish(trial("socket"), kUnixAddress));
    case Step::fetch_socket:
      return of_others(fetch(trial("socket")));
    case Step::publish_knock:
      return of_others(publish(fmt::format("{}{}", trial("knock/"), rank_), "connected"));
    case Step::fetch_knocks:
      return of_leader(fetch_many(trial("knock/"), leader() + 1, end, 1, timeout_ns));
    case Step::publish_members:
      return of_leader(
          publish(fmt::format("world/hosts/members/{}", leader()), fmt::format("{}-{}", leader(), end - 1)));
    case Step::fetch_members:
      return of_others(fetch(fmt::format("world/hosts/members/{}", leader())));
    case Step::collect_hosts:
      if (rank_ != 0 || cluster_->hosts == 1) return std::nullopt;
      return fetch_many("world/hosts/members/", cluster_->ranks_per_host, cluster_->ranks(), cluster_->ranks_per_host,
                        timeout_ns);
    case Step::publish_hosts: {
      if (rank_ != 0 || cluster_->hosts == 1) return std::nullopt;
      std::string all;
      for (int first = 0; first < cluster_->ranks(); first += cluster_->ranks_per_host) {
        all += fmt::format("{}{}-{}", all.empty() ? "" : ";", first, first + cluster_->ranks_per_host - 1);
      }
      return publish("world/hosts/all", std::move(all));
    }
    case Step::fetch_hosts:
      if (rank_ == 0 || cluster_->hosts == 1) return std::nullopt;
      return fetch("world/hosts/all");
    case Step::publish_memory:
      return of_leader(publish(fmt::format("memory/{}", leader()), kUnixAddress));
    case Step::fetch_memory:
      return of_others(fetch(fmt::format("memory/{}", leader())));
    case Step::publish_transport:
      return of_leader(publish(segment("transport"), kUnixAddress));
    case Step::fetch_transport:
      return of_others(fetch(segment("transport")));
    case Step::publish_collectives:
      return of_leader(publish(segment("collectives"), kUnixAddress));
    case Step::fetch_collectives:
      return of_others(fetch(segment("collectives")));
    default:
      return std::nullopt;
  }
}

// Runtime::commit().
std::optional<CoordinatorMessage> StartProgram::request_of_commit(Step step, int64_t timeout_ns) const {
  const bool is_first = rank_ == 0;
  switch (step) {
    case Step::publish_made:
      if (is_first) return std::nullopt;
      return publish(fmt::format("all made/{}", rank_), "1");
    case Step::collect_made:
      if (!is_first) return std::nullopt;
      return fetch_many("all made/", 1, cluster_->ranks(), 1, timeout_ns);
    case Step::publish_all:
      return is_first ? std::optional(publish("all made/all", "1")) : std::nullopt;
    case Step::fetch_all:
      return is_first ? std::nullopt : std::optional(fetch("all made/all"));
    default:
      return std::nullopt;
  }
}

}  // namespace fdl
