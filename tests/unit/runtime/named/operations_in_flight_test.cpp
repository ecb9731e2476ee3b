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
  names.erase({"b"});
  EXPECT_EQ(names.insert({"b"}), std::nullopt);
}

TEST(NamesInFlight, RejectsASubmissionWithOneNameTwice) {
  NamesInFlight names;
  EXPECT_EQ(names.insert({"a", "a"}), "a");
  EXPECT_EQ(names.insert({"a"}), std::nullopt);
}

// One operation that has taken the name "a".
struct TakenName {
  TakenName() { EXPECT_EQ(tensor.handle->names().take(operations.names(), {"a"}), std::nullopt); }
  void complete() {
    operations.begin(entry);
    operations.complete(entry, {});
  }
  bool is_free() {
    if (operations.names()->insert({"a"})) return false;
    operations.names()->erase({"a"});
    return true;
  }

  OperationsInFlight operations;
  Tensor tensor{{1}};
  Entry entry = tensor.entry("a");
};

TEST(TakenNames, NameIsTakenUntilTheCallerObservesTheEnd) {
  TakenName one;
  one.complete();
  EXPECT_TRUE(one.tensor.handle->done());
  EXPECT_FALSE(one.is_free());
  one.tensor.handle->names().release();
  EXPECT_TRUE(one.is_free());
}

TEST(TakenNames, SecondReleaseDoesNotFreeTheNameOfALaterOperation) {
  TakenName one;
  one.complete();
  one.tensor.handle->names().release();
  ASSERT_EQ(one.operations.names()->insert({"a"}), std::nullopt);
  one.tensor.handle->names().release();
  EXPECT_FALSE(one.is_free());
}

TEST(TakenNames, NameIsFreeWhenTheCallbackRuns) {
  TakenName one;
  bool was_free = false;
  one.tensor.handle->notify([&] { was_free = one.is_free(); });
  EXPECT_FALSE(one.is_free());
  one.complete();
  EXPECT_TRUE(was_free);
}

TEST(TakenNames, NameOfAHandleFreedEarlyIsFreeWhenTheOperationIsDone) {
  TakenName one;
  one.tensor.handle->abandon();
  EXPECT_FALSE(one.is_free());
  one.complete();
  EXPECT_TRUE(one.is_free());
}

TEST(TakenNames, NameOfAHandleFreedAfterTheEndIsFree) {
  TakenName one;
  one.complete();
  one.tensor.handle->abandon();
  EXPECT_TRUE(one.is_free());
}

TEST(TakenNames, HandleOutlivesTheGroup) {
  auto operations = std::make_unique<OperationsInFlight>();
  Handle handle(1);
  ASSERT_EQ(handle.names().take(operations->names(), {"a"}), std::nullopt);
  operations.reset();
  handle.names().release();
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
