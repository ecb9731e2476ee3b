// Tests of metrics: the counts of ranks as Prometheus reads them over HTTP while operations run, and failures.
#include "runtime/telemetry/metrics.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>
#include <sstream>

#include "runtime/telemetry/page_server.h"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

using fdl::DurationCounts;
using fdl::GroupMetrics;
using fdl::Metrics;

// ---- counting ----

TEST(Metrics, CountsDurationsUnderTheFirstBoundThatHoldsThem) {
  DurationCounts counts;
  for (const int64_t ns : {int64_t{0}, int64_t{10'000}, int64_t{10'001}, int64_t{10'000'000'001}}) counts.add(ns);
  EXPECT_EQ(counts.count(0), 2u);
  EXPECT_EQ(counts.count(1), 1u);
  EXPECT_EQ(counts.count(DurationCounts::kBounds_ns.size()), 1u);
  EXPECT_EQ(counts.sum_ns(), 10'000'020'002);
}

TEST(Metrics, LabelsGroupsByTheirRanks) {
  EXPECT_EQ(Metrics::label_of({0, 1, 2}, 3), "all");
  EXPECT_EQ(Metrics::label_of({2, 0}, 3), "{2,0}");
  std::vector<int> many;
  for (int rank = 3; rank < 40; ++rank) many.push_back(rank);
  EXPECT_EQ(Metrics::label_of(many, 50), "{3,...,39} of 37");
}

TEST(Metrics, GroupsOfTheSameRanksShareTheirCounts) {
  Metrics metrics(Metrics::Labels{{"rank", "0"}});
  metrics.group("{0,1}")->ended(0, 8, 5, false);
  EXPECT_EQ(metrics.group("{0,1}")->row(0).operations.load(), 1u);
  EXPECT_EQ(metrics.group("all")->row(0).operations.load(), 0u);
  EXPECT_EQ(metrics.groups().size(), 2u);
  EXPECT_EQ(metrics.name_of_row(0), "allreduce");
  EXPECT_EQ(metrics.name_of_row(GroupMetrics::kJoin), "join");
}

// ---- the page ----

int bind_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && ::listen(fd, 1) == 0) return fd;
  ::close(fd);
  return -1;
}

// The first of `count` consecutive free ports. Tests run concurrently, so each process searches from another start.
int free_ports(int count) {
  constexpr int kEach = 4;
  for (int first = 20'000 + ::getpid() % 2'500 * kEach;; first += kEach) {
    int free = 0;
    for (; free < count; ++free) {
      const int fd = bind_to(first + free);
      if (fd < 0) break;
      ::close(fd);
    }
    if (free == count) return first;
  }
}

// A connection to this host's address 127.0.0.<last>; -1 if nothing listens there.
int connect_to(int port, uint32_t last = 1) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(0x7f000000 + last);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

std::string page_of(int port, const std::string& headers = "", const std::string& line = "GET /metrics HTTP/1.0") {
  const int fd = connect_to(port);
  std::string page;
  if (fd >= 0) {
    const std::string request = line + "\r\n" + headers + "\r\n";
    EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    char some[4096];
    for (ssize_t got = 0; (got = ::recv(fd, some, sizeof some, 0)) > 0;)
      page.append(some, static_cast<std::size_t>(got));
  }
  ::close(fd);
  return page;
}

// The value of the line with this beginning; -1 if there is none.
double value(const std::string& page, const std::string& beginning) {
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(beginning + " ")) return std::stod(line.substr(beginning.size()));
  }
  return -1;
}

std::string row(const std::string& name, const std::string& collective, const std::string& group = "all") {
  return name + "{collective=\"" + collective + "\",group=\"" + group + "\"}";
}

fdl_result sum_named(World& me, const char* name, fdl_dtype dtype, int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count), 1);
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.kind = FDL_NAMED_ALLREDUCE;
  operation.name = name;
  operation.input = {values.data(), dtype, 1, &count, 0, 0, nullptr};
  operation.output = values.data();
  operation.op = FDL_SUM;
  fdl_handle* handle = nullptr;
  fdl_result result = fdl_submit(me.all, &operation, 1, &handle);
  if (result != FDL_OK) return result;
  result = fdl_wait_handle(handle, -1);
  fdl_handle_free(handle);
  return result;
}

TEST(MetricsPage, ShowsEachCollectiveWithItsBytesAndTimes) {
  const int port = free_ports(2);
  run_ranks(2, {{"metrics_port", std::to_string(port)}}, [port](World& me) {
    std::vector<float> values(1000, 1);
    std::vector<float> twice(2000);
    for (int i = 0; i < 3; ++i) {
      FDL_ASSERT_OK(fdl_allreduce(me.comm, values.data(), twice.data(), 1000, FDL_FLOAT32, FDL_SUM));
    }
    fdl_request* request = nullptr;
    FDL_ASSERT_OK(fdl_iallgather(me.comm, values.data(), twice.data(), 1000, FDL_FLOAT32, &request));
    FDL_ASSERT_OK(fdl_wait(request));
    FDL_ASSERT_OK(sum_named(me, "one", FDL_FLOAT32, 10));
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    const std::string page = page_of(port + me.rank);
    EXPECT_EQ(value(page, row("farandole_operations_total", "allreduce")), 4) << page;
    EXPECT_EQ(value(page, row("farandole_bytes_total", "allreduce")), 3 * 4000 + 40);
    EXPECT_EQ(value(page, row("farandole_operations_total", "allgather")), 1);
    EXPECT_EQ(value(page, row("farandole_bytes_total", "allgather")), 4000);
    EXPECT_EQ(value(page, row("farandole_bytes_total", "barrier")), 0);
    EXPECT_EQ(value(page, row("farandole_errors_total", "allreduce")), 0);
    EXPECT_EQ(value(page, row("farandole_operation_seconds_count", "allreduce")), 4);
    EXPECT_GT(value(page, row("farandole_operation_seconds_sum", "allreduce")), 0);
    EXPECT_EQ(value(page, row("farandole_wait_seconds_count", "allreduce")), 1);
    EXPECT_EQ(value(page, "farandole_stalls_total{group=\"all\"}"), 0);
    EXPECT_NE(page.find("farandole_rank_info{rank=\"" + std::to_string(me.rank) + "\",size=\"2\",local_rank=\"" +
                        std::to_string(me.rank) + "\""),
              std::string::npos);
    EXPECT_EQ(page.find("collective=\"scatter\""), std::string::npos);  // no rank has called it
    FDL_ASSERT_OK(fdl_barrier(me.comm));                                // the other rank has read its page too
  });
  EXPECT_EQ(page_of(port), "");  // the world has ended, and its port is free
}

TEST(MetricsPage, CountsErrorsAndStallsOnTheRightRank) {
  const int port = free_ports(2);
  std::atomic<bool> warned{false};
  run_ranks(2, {{"metrics_port", std::to_string(port)}, {"stall_warning_s", "0.05"}}, [&](World& me) {
    EXPECT_EQ(sum_named(me, "two types", me.rank == 0 ? FDL_FLOAT32 : FDL_INT32, 10), FDL_MISMATCH);
    // Rank 1 submits once the root has reported that it is missing. On a busy machine the operation before may have
    // been a stall too.
    while (me.rank == 1 && !warned) warned = value(page_of(port), "farandole_stalls_total{group=\"all\"}") >= 1;
    FDL_EXPECT_OK(sum_named(me, "late", FDL_FLOAT32, 10));
    const std::string page = page_of(port + me.rank);
    EXPECT_EQ(value(page, row("farandole_errors_total", "allreduce")), 1) << page;
    EXPECT_EQ(value(page, row("farandole_operations_total", "allreduce")), 2);
    const double stalls = value(page, "farandole_stalls_total{group=\"all\"}");
    EXPECT_TRUE(me.rank == 0 ? stalls >= 1 : stalls == 0) << "rank " << me.rank << ": " << stalls;
    EXPECT_EQ(value(page, row("farandole_wait_seconds_count", "allreduce")), 1);  // the mismatch never began
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

TEST(MetricsPage, HasRowsForEachGroup) {
  const int port = free_ports(3);
  run_ranks(3, {{"metrics_port", std::to_string(port)}}, [port](World& me) {
    if (me.rank != 1) {
      const int ranks[] = {0, 2};
      fdl_group* group = nullptr;
      FDL_ASSERT_OK(fdl_group_create(me.world, ranks, 2, &group));
      fdl_comm* comm = nullptr;
      FDL_ASSERT_OK(fdl_comm_create(group, &comm));
      int32_t one = 1;
      FDL_EXPECT_OK(fdl_allreduce(comm, &one, &one, 1, FDL_INT32, FDL_SUM));
      fdl_comm_destroy(comm);
      fdl_group_destroy(group);
      const std::string page = page_of(port + me.rank);
      EXPECT_EQ(value(page, row("farandole_operations_total", "allreduce", "{0,2}")), 1) << page;
    }
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

TEST(MetricsPage, CountersNeverDecreaseWhileOperationsRun) {
  const int port = free_ports(2);
  run_ranks(2, {{"metrics_port", std::to_string(port)}}, [port](World& me) {
    std::atomic<bool> done{false};
    std::thread reader([&] {
      double before = 0;
      do {
        const double now = value(page_of(port + me.rank), row("farandole_operations_total", "allreduce"));
        EXPECT_GE(std::max(now, 0.0), before);
        before = std::max(now, before);
      } while (!done);
    });
    float one = 1;
    for (int i = 0; i < 300; ++i) {
      FDL_EXPECT_OK(fdl_allreduce(me.comm, &one, &one, 1, FDL_FLOAT32, FDL_MAX));
      FDL_EXPECT_OK(sum_named(me, ("t" + std::to_string(i % 3)).c_str(), FDL_FLOAT32, 10));
    }
    done = true;
    reader.join();
    EXPECT_EQ(value(page_of(port + me.rank), row("farandole_operations_total", "allreduce")), 600);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

// ---- who may read it ----

TEST(MetricsPage, IsOnLoopbackUnlessAnAddressIsSet) {
  const int port = free_ports(2);
  run_ranks(1, {{"metrics_port", std::to_string(port)}}, [port](World&) {
    EXPECT_NE(page_of(port), "");
    EXPECT_EQ(connect_to(port, 2), -1);
  });
  run_ranks(1, {{"metrics_port", std::to_string(port)}, {"metrics_address", "*"}}, [port](World&) {
    EXPECT_NE(page_of(port), "");
    const int other = connect_to(port, 2);
    EXPECT_GE(other, 0);
    ::close(other);
  });
}

TEST(MetricsPage, NeedsTheToken) {
  const int port = free_ports(1);
  run_ranks(1, {{"metrics_port", std::to_string(port)}, {"metrics_token", "a secret"}}, [port](World&) {
    for (const char* headers : {"", "Authorization: Bearer another\r\n", "Authorization: a secret\r\n",
                                "X-Authorization: Bearer a secret\r\n", "Authorization: Bearer a secret1\r\n"}) {
      const std::string page = page_of(port, headers);
      EXPECT_NE(page.find("401 Unauthorized"), std::string::npos) << headers;
      EXPECT_EQ(page.find("farandole_rank_info"), std::string::npos) << headers;
    }
    const std::string page = page_of(port, "Host: x\r\nauthorization:  Bearer a secret \r\n");
    EXPECT_NE(page.find("200 OK"), std::string::npos) << page;
    EXPECT_NE(page.find("farandole_rank_info"), std::string::npos);
  });
}

TEST(MetricsPage, RefusesOtherRequests) {
  const int port = free_ports(1);
  run_ranks(1, {{"metrics_port", std::to_string(port)}}, [port](World&) {
    EXPECT_NE(page_of(port, "", "GET / HTTP/1.1").find("404 Not Found"), std::string::npos);
    EXPECT_NE(page_of(port, "", "POST /metrics HTTP/1.1").find("405 Method Not Allowed"), std::string::npos);
    EXPECT_NE(page_of(port, "X: " + std::string(20'000, 'x')).find("431 "), std::string::npos);
    EXPECT_NE(page_of(port).find("200 OK"), std::string::npos);
  });
}

// More connections than the server keeps, all of which send half of a request.
TEST(MetricsPage, HalfOpenRequestsDelayNoScrape) {
  const int port = free_ports(1);
  run_ranks(1, {{"metrics_port", std::to_string(port)}}, [port](World&) {
    std::vector<int> half_open;
    for (int i = 0; i < 100; ++i) {
      half_open.push_back(connect_to(port));
      ASSERT_GE(half_open.back(), 0);
      static_cast<void>(::send(half_open.back(), "GET /met", i % 2 == 0 ? 8 : 0, MSG_NOSIGNAL));
    }
    const auto began = std::chrono::steady_clock::now();
    EXPECT_NE(page_of(port).find("200 OK"), std::string::npos);
    // Half of the limit of a connection: nothing waited for one of the others to end.
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
    for (const int fd : half_open) ::close(fd);
  });
}

TEST(PageServers, EndARequestThatTakesTooLong) {
  std::string why;
  const int port = free_ports(1);
  const auto server = fdl::PageServer::open(
      {"localhost", port, ""}, [] { return "a page"; }, why, 200);
  ASSERT_NE(server, nullptr) << why;
  const int fd = connect_to(port);
  ASSERT_GE(fd, 0);
  const auto began = std::chrono::steady_clock::now();
  bool has_ended = false;
  for (int sent = 0; sent < 1000 && !has_ended; ++sent) {
    static_cast<void>(::send(fd, "G", 1, MSG_NOSIGNAL));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    char byte = 0;
    const ssize_t got = ::recv(fd, &byte, 1, MSG_DONTWAIT);
    has_ended = got == 0 || (got < 0 && errno == ECONNRESET);
  }
  EXPECT_TRUE(has_ended);
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(190));
  ::close(fd);
}

TEST(PageServers, GoOnAfterAPageThatMemoryCannotHold) {
  std::string why;
  const int port = free_ports(1);
  std::atomic<int> pages{0};
  const auto page = [&pages]() -> std::string {
    if (++pages == 1) throw std::bad_alloc();
    return "the second page";
  };
  const auto server = fdl::PageServer::open({"localhost", port, ""}, page, why);
  ASSERT_NE(server, nullptr) << why;
  EXPECT_EQ(page_of(port), "");
  EXPECT_NE(page_of(port).find("the second page"), std::string::npos);
}

// ---- failures ----

TEST(MetricsPage, PortInUseIsAWarningOnly) {
  const int port = free_ports(2);
  const int taken = bind_to(port + 1);
  ASSERT_GE(taken, 0);
  testing::internal::CaptureStderr();
  run_ranks(2, {{"metrics_port", std::to_string(port)}}, [port](World& me) {
    FDL_EXPECT_OK(sum_named(me, "one", FDL_FLOAT32, 10));
    EXPECT_EQ(page_of(port).empty(), false);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_NE(logged.find("metrics on port " + std::to_string(port + 1)), std::string::npos) << logged;
  EXPECT_NE(logged.find("goes on without the metrics of rank 1"), std::string::npos) << logged;
  ::close(taken);
}

TEST(MetricsPage, ImpossiblePortIsAWarning) {
  testing::internal::CaptureStderr();
  run_ranks(1, {{"metrics_port", "70000"}}, [](World& me) { FDL_EXPECT_OK(sum_named(me, "one", FDL_FLOAT32, 10)); });
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_NE(logged.find("FARANDOLE_METRICS_PORT = '70000'"), std::string::npos) << logged;
}

}  // namespace
}  // namespace world_test
