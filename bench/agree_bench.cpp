// Measures agreement without a network: the time of a step of tensors on one rank, negotiated and in locked order.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "agree/session/session.h"
#include "agree/session/submissions.h"

namespace {

using namespace fdl;

// Submissions keeps the runtime's entries; only the request matters here.
struct Ticket {
  Request request;
};

std::vector<Request> requests_of(int64_t tensors) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < tensors; ++i) {
    requests.push_back({.name = "layer." + std::to_string(i) + ".weight", .shape = {64, 1 + i % 32}});
  }
  return requests;
}

// Root and one other rank: both request all tensors at once, the root decides, and both decode the plan.
void negotiated(benchmark::State& state) {
  const auto requests = requests_of(state.range(0));
  // 1024 is the default of FARANDOLE_CACHE_CAPACITY. After the first iteration all requests are cached, and messages
  // have bits instead of names.
  RootSession root({.size = 2, .fusion_bytes = 64_MiB}, 1024);
  MemberSession zero(1024);
  MemberSession one(1024);
  for (auto _ : state) {
    static_cast<void>(root.receive(0, zero.encode_requests(requests), 0));
    static_cast<void>(root.receive(1, one.encode_requests(requests), 0));
    const auto plan = root.decide(0);
    benchmark::DoNotOptimize(zero.decode_plan(*plan));
    benchmark::DoNotOptimize(one.decode_plan(*plan));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

// One rank's part of a locked step while the other rank is ready: it submits every tensor and begins every bucket.
void locked(benchmark::State& state) {
  const int64_t tensors_per_bucket = state.range(1);
  std::vector<Ticket> tickets;
  std::vector<Bucket> buckets;
  for (const Request& request : requests_of(state.range(0))) {
    if (tickets.size() % static_cast<std::size_t>(tensors_per_bucket) == 0) buckets.emplace_back();
    buckets.back().names.push_back(request.name);
    buckets.back().element_counts.push_back(request.element_count());
    tickets.push_back({request});
  }
  // The other rank has always submitted everything: its readiness flag has the largest count.
  Submissions<Ticket> rank(0, 2);
  rank.lock(buckets, [](const std::string&) { return nullptr; });
  const uint64_t ready = to_word({1, kMaxReadinessCount, false});
  for (auto _ : state) {
    for (Ticket& ticket : tickets) rank.submit(std::move(ticket));
    rank.read_words([&](int which) { return which == 0 ? rank.order()->word() : ready; });
    std::size_t next = 0;
    // The tickets move out of the submissions and back, so an iteration allocates nothing for them.
    while (auto begun = rank.begin()) {
      for (auto& ticket : begun->entries) tickets[next++] = std::move(*ticket);
    }
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(negotiated)->Arg(1)->Arg(161);
// Tensors, and tensors in a bucket: 161 single ones, and 161 that are fused into one.
BENCHMARK(locked)->Args({1, 1})->Args({161, 1})->Args({161, 161});

}  // namespace

BENCHMARK_MAIN();
