// ElasticNode is the launcher of one node of an elastic job whose nodes can take over from each other: it follows the
// node that leads, and leads when that falls to it. A node that leads does so until its end.
#pragma once

#include <memory>

#include "cli/elastic/elastic_member.h"
#include "cli/elastic/job/elastic_job.h"
#include "cli/run/worker_group.h"

namespace fdl {

// Used by the supervisor's thread alone.
class ElasticNode final : public WorkerGroup {
 public:
  // `leading` has several nodes, and is used if this node takes over.
  static Result<std::unique_ptr<ElasticNode>> open(const ElasticMember::Options& led, std::unique_ptr<NodePort> port,
                                                   const ElasticJob::Options& leading);

  Status watch(Poller& poller, uint64_t first_token) override;
  void serve(uint64_t token) override { role().serve(token); }
  bool ended(int worker, const Ending& ending) override { return role().ended(worker, ending); }
  void stop(const std::string& why) override { role().stop(why); }
  bool query_states() override { return role().query_states(); }
  Deadline next() const override { return role().next(); }
  void tick() override { role().tick(); }
  std::vector<Action> take_actions() override;
  bool stays() const override { return role().stays(); }
  bool has_succeeded() const override { return role().has_succeeded(); }

 private:
  ElasticNode(std::unique_ptr<ElasticMember> member, const ElasticJob::Options& leading)
      : member_(std::move(member)), leading_(leading) {}
  WorkerGroup& role() const { return job_ ? static_cast<WorkerGroup&>(*job_) : *member_; }
  std::optional<Action> take_over();

  std::unique_ptr<ElasticMember> member_;  // null once this node leads
  std::unique_ptr<ElasticJob> job_;
  const ElasticJob::Options leading_;
  Poller* poller_ = nullptr;
  uint64_t first_token_ = 0;
};

}  // namespace fdl
