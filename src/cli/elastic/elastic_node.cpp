// ElasticNode changes its part between two turns of the supervisor, so that no event is handled by both.
#include "cli/elastic/elastic_node.h"

#include <utility>

#include "cli/subcommands.h"

namespace fdl {

Result<std::unique_ptr<ElasticNode>> ElasticNode::open(const ElasticMember::Options& led,
                                                       std::unique_ptr<NodePort> port,
                                                       const ElasticJob::Options& leading) {
  FDL_ASSIGN_OR_RETURN(auto member, ElasticMember::open(led, std::move(port)));
  return std::unique_ptr<ElasticNode>(new ElasticNode(std::move(member), leading));
}

Status ElasticNode::watch(Poller& poller, uint64_t first_token) {
  poller_ = &poller;
  first_token_ = first_token;
  return role().watch(poller, first_token);
}

// Actions of the former part come first: they were decided before the loss.
std::vector<WorkerGroup::Action> ElasticNode::take_actions() {
  std::vector<Action> actions = role().take_actions();
  if (!member_ || !member_->takes_over()) return actions;
  if (auto failure = take_over()) {
    actions.push_back(std::move(*failure));
    return actions;
  }
  for (Action& action : job_->take_actions()) actions.push_back(std::move(action));
  return actions;
}

std::optional<WorkerGroup::Action> ElasticNode::take_over() {
  job_ = ElasticJob::take_over(leading_, member_->inherit());
  member_.reset();
  const Status watched = job_->watch(*poller_, first_token_);
  if (watched.ok()) return std::nullopt;
  return Action{.kind = Action::Kind::give_up, .exit_code = exit_code_of_system(watched), .text = watched.text()};
}

}  // namespace fdl
