// Tests of StackReader: each question that no earlier one serves gets an answer of its own.
#include "runtime/lifecycle/stack_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>

namespace fdl {
namespace {

std::string answer_of(StackReader& reader) {
  for (int i = 0; i < 10'000; ++i) {
    if (auto found = reader.find()) return *found;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "no answer";
}

TEST(StackReader, ReadsAnewForEachQuestion) {
  std::atomic<int> calls{0};
  StackReader reader([&] { return "stacks " + std::to_string(++calls); });
  for (const char* expected : {"stacks 1", "stacks 2", "stacks 3"}) {
    ASSERT_TRUE(reader.begin());
    EXPECT_EQ(answer_of(reader), expected);
  }
}

TEST(StackReader, AnswersQuestionsThatComeMeanwhileTogether) {
  std::latch may_answer(1);
  std::atomic<int> calls{0};
  StackReader reader([&] {
    may_answer.wait();
    return "stacks " + std::to_string(++calls);
  });
  EXPECT_TRUE(reader.begin());
  EXPECT_TRUE(reader.begin());
  EXPECT_EQ(reader.find(), std::nullopt);
  may_answer.count_down();
  EXPECT_EQ(answer_of(reader), "stacks 1");
}

TEST(StackReader, PromisesNoAnswerWithoutAFunction) {
  StackReader reader({});
  EXPECT_FALSE(reader.begin());
}

}  // namespace
}  // namespace fdl
