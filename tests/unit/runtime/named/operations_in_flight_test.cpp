// Tests of OperationsInFlight and of the names of its operations.
#include "runtime/named/operations_in_flight.h"

#include "tests/unit/runtime/named/planned.h"

namespace fdl::test {
namespace {

TEST(NamesInFlight, RejectsANameInFlightAndInsertsNoneOfItsSubmission) {
  NamesInFlight names;
  EXPECT_EQ(names.insert({"a", "b"}), std::nullopt);
  EXPECT_EQ(names.insert({"c", "b", "d"}), "b");
  EXPECT_EQ(names.insert({"c", "d"}), std::nullopt);
  names.erase("b");
  EXPECT_EQ(names.insert({"b"}), std::nullopt);
}

TEST(NamesInFlight, RejectsASubmissionWithOneNameTwice) {
  NamesInFlight names;
  EXPECT_EQ(names.insert({"a", "a"}), "a");
  EXPECT_EQ(names.insert({"a"}), std::nullopt);
}

TEST(OperationsInFlight, NameIsFreeBeforeTheHandleIsDone) {
  OperationsInFlight operations;
  Tensor tensor({1});
  Entry entry = tensor.entry("a");
  ASSERT_EQ(operations.names().insert({"a"}), std::nullopt);
  std::optional<std::string> taken = "never called";
  tensor.handle->notify([&] { taken = operations.names().insert({"a"}); });
  operations.begin(entry);
  operations.complete(entry, {});
  EXPECT_EQ(taken, std::nullopt);
  EXPECT_TRUE(tensor.handle->status().ok());
}

TEST(OperationsInFlight, ErrorNamesTheOperation) {
  OperationsInFlight operations;
  Tensor tensor({1});
  Entry entry = tensor.entry("grad");
  operations.complete(entry, Status(Code::transport, "the link is down"));
  EXPECT_EQ(tensor.handle->status().code(), Code::transport);
  EXPECT_EQ(tensor.handle->status().error().operation, "allreduce 'grad'");
}

TEST(OperationsInFlight, CountsOperationsThatAreRejectedAtSubmissionAsCompletedOnly) {
  OperationsInFlight operations;
  Tensor a({1});
  Tensor b({2});
  PlannedBucket planned = planned_sum({&a, &b});
  planned.entries.emplace_back();  // this rank has joined before the third
  for (auto& entry : planned.entries) {
    if (entry) operations.begin(*entry);
  }
  operations.complete(planned.entries, {});
  Tensor rejected({3});
  Entry entry = rejected.entry("rejected");
  operations.complete(entry, Status(Code::shut_down, "late"));
  EXPECT_EQ(operations.submitted(), 2u);
  EXPECT_EQ(operations.completed(), 3u);
}

TEST(OperationsInFlight, MetricsCountErrorsButNotTheEndOfTheGroup) {
  OperationsInFlight operations;
  const auto metrics = std::make_shared<GroupMetrics>();
  operations.telemetry().count_with(metrics);
  for (const Code code : {Code::ok, Code::transport, Code::shut_down}) {
    Tensor tensor({1, 2});
    Entry entry = tensor.entry("a");
    operations.complete(entry, code == Code::ok ? Status() : Status(code, "why"));
  }
  Tensor memory({1});
  Entry allocation = memory.entry("device memory 0");
  allocation.allocates_symmetric = true;
  operations.complete(allocation, {});
  const GroupMetrics::Row& row = metrics->row(GroupMetrics::row_of(RequestKind::allreduce));
  EXPECT_EQ(row.operations.load(), 3u);
  EXPECT_EQ(row.bytes.load(), 24u);
  EXPECT_EQ(row.errors.load(), 1u);
}

}  // namespace
}  // namespace fdl::test
