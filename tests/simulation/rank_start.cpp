// A simulated rank starts as Runtime::connect_ranks() does: it connects to the coordinator, waits until all ranks have
// arrived, and makes the communicator of the world.
#include <algorithm>

#include "tests/simulation/job.h"
#include "tests/simulation/rank.h"

namespace fdl::simulation {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr int64_t kGrace = 2 * kSecond;  // more than the coordinator has, whose text is better

// As in coordinator_client.cpp.
bool belongs_to_the_job_before(const Status& status) {
  return (status.code() == Code::shut_down || status.code() == Code::peer_lost) && status.error().culprit_rank < 0;
}

}  // namespace

CoordinatorClient::Hello Rank::hello() const { return job_.hello_of(*this, rank_, *world_); }

Task<Status> Rank::start() {
  const int64_t arrival = seconds_to_ns(world_->arrival_timeout_s);
  link_.reset();
  comms_.clear();
  decisions_ = std::make_unique<FailureDecisions>();
  if (world_->is_served_by_rank_0 && rank_ == 0 && world_->coordinator == nullptr) job_.serve(*world_, process());
  auto connecting = connect();
  Status connected = co_await connecting;
  if (!connected.ok()) co_return connected;
  const int64_t until = clock() + arrival + kGrace;
  CoordinatorMessage request{.kind = Kind::wait};
  request.number = arrival + kGrace;
  auto arriving = ask(std::move(request), {}, [until] { return until + kGrace; });
  auto answer = co_await arriving;
  if (!answer.ok()) co_return answer.status();
  if (!answer->table) co_return Status(Code::internal, "the coordinator sent no table");
  std::vector<int> everyone;
  for (int rank = 0; rank < hello().size; ++rank) everyone.push_back(rank);
  auto making = make_comm("comm 0", everyone);
  Status made = co_await making;
  co_return made;
}

void Rank::begin_connect(Actor* target, std::shared_ptr<Attempt> attempt) {
  network().connect(
      *this, target,
      [this, attempt](End end) {
        attempt->made = end;
        wake();
      },
      [this, attempt] {
        attempt->is_refused = true;
        wake();
      });
}

// As CoordinatorClient::connect().
Task<Status> Rank::connect() {
  const int64_t deadline = clock() + seconds_to_ns(world_->arrival_timeout_s);
  int64_t pause = 10 * kMs;
  while (true) {
    const auto attempt = std::make_shared<Attempt>();
    if (world_->coordinator == nullptr) {
      attempt->is_refused = true;
    } else {
      begin_connect(world_->coordinator, attempt);
    }
    auto until_connected = wait([attempt] { return attempt->is_over(); }, deadline);
    co_await until_connected;
    Status why(Code::timeout, "the coordinator cannot be reached");
    if (attempt->made) {
      link_ = std::make_unique<CoordinatorLink>(*attempt->made, hello(), kLimits);
      const auto is_settled = [this] {
        const ClientProtocol& protocol = link_->protocol();
        return protocol.is_welcome() || !protocol.refusal().ok() || !protocol.is_open();
      };
      auto until_welcome = wait(is_settled, deadline);
      co_await until_welcome;
      ClientProtocol& protocol = link_->protocol();
      if (protocol.is_welcome()) co_return Status();
      why = !protocol.refusal().ok() ? protocol.refusal()
            : !protocol.is_open()    ? protocol.coordinator_lost()
                                     : Status(Code::timeout, "the coordinator did not answer the hello");
      link_->close();
      link_.reset();
      if (!belongs_to_the_job_before(why)) co_return why;
    }
    if (clock() >= deadline) co_return why;
    if (server_is_gone()) co_return Status(Code::peer_lost, "rank 0 of the new world was lost before it could serve");
    auto delay = sleep(pause);
    co_await delay;
    pause = std::min(2 * pause, 500 * kMs);
  }
}

// As SocketClient::send_request().
Task<Result<CoordinatorMessage>> Rank::ask(CoordinatorMessage request, std::vector<int> of,
                                           std::function<int64_t()> until) {
  auto id = link_->protocol().request(std::move(request));
  if (!id.ok()) co_return Result<CoordinatorMessage>(id.status());
  link_->carry_out();
  const uint64_t number = *id;
  auto until_settled = wait([this, number, of] { return link_->protocol().is_settled(number, of); }, until);
  co_await until_settled;
  auto reply = link_->protocol().take_reply(number, of);
  link_->carry_out();
  co_return reply;
}

}  // namespace fdl::simulation
