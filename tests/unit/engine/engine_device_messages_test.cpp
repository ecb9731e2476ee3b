// Tests of messages from and to device memory, among those of host memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/device_vectors.h"

namespace fdl::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Message message_of(DeviceRank& me, int peer, bool outgoing, void* data, std::size_t bytes) {
  Message message{.peer = peer, .outgoing = outgoing, .data = static_cast<std::byte*>(data), .bytes = bytes};
  message.device = &me.device;
  message.stream = me.stream;
  return message;
}

// Messages go to all ranks, the sender included, in mixed order with messages of host memory.
TEST(DeviceMessages, KeepTheirOrderAmongHostMessages) {
  for (int size = 1; size <= 3; ++size) {
    DeviceRanks participants = staging();
    participants.device.most_delay_us = 100;
    run_device_ranks(size, participants, [&](DeviceRank& me) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{700}}) {
        const auto sum = static_cast<int64_t>(me.rank());
        std::vector<std::unique_ptr<Ones>> sent, received;
        std::vector<int64_t> on_host(static_cast<std::size_t>(size) * 2, 0);
        std::vector<Message> messages;
        messages.reserve(static_cast<std::size_t>(size) * 4);
        for (int peer = 0; peer < size; ++peer) {
          sent.push_back(std::make_unique<Ones>(me, count));
          received.push_back(std::make_unique<Ones>(me, count));
          int64_t* word = &on_host[static_cast<std::size_t>(peer) * 2];
          word[0] = sum;
          me.device.pause(me.stream);
          require(me.device.enqueue(me.stream, [&me, memory = sent.back()->memory(), count, sum] {
            std::fill_n(static_cast<int64_t*>(me.device.at(memory)), count, 100 + sum);
          }));
          messages.push_back(message_of(me, peer, true, sent.back()->memory(), count * 8));
          messages.push_back({.peer = peer, .outgoing = true, .data = reinterpret_cast<std::byte*>(word), .bytes = 8});
          messages.push_back(message_of(me, peer, false, received.back()->memory(), count * 8));
          messages.push_back({.peer = peer, .data = reinterpret_cast<std::byte*>(word + 1), .bytes = 8});
          for (std::size_t i = messages.size() - 4; i < messages.size(); ++i) me.comm.start(messages[i]);
          me.device.resume();
        }
        for (Message& one : messages) require(me.comm.wait(one.completion, Deadline::after_seconds(60)));
        for (int peer = 0; peer < size; ++peer) {
          require(on_host[static_cast<std::size_t>(peer) * 2 + 1] == peer, "wrong word");
          require(received[static_cast<std::size_t>(peer)]->are(100 + peer), "wrong message");
        }
      }
    });
  }
}

TEST(DeviceMessages, AreRejectedOnACapturedStreamOrAnotherDevice) {
  HostDevice second({.index = 7});
  run_device_ranks(1, staging(), [&](DeviceRank& me) {
    Ones vector(me, 10);
    me.device.capture(me.stream, true);
    Message send = message_of(me, 0, true, vector.memory(), 80);
    me.comm.start(send);
    EXPECT_THAT(send.completion.status.text(), HasSubstr("captured"));
    me.device.capture(me.stream, false);
    send.device = &second;
    me.comm.start(send);
    EXPECT_THAT(send.completion.status.text(), AllOf(HasSubstr("host:7"), HasSubstr("host:0")));
    EXPECT_TRUE(me.comm.status().ok());
  });
}

TEST(DeviceMessages, EndWhenAPeerLeavesOrADeviceFails) {
  using Call = HostDevice::Call;
  const Status off(Code::unsupported, "host:1 has fallen");
  int met = 0;
  for (const Call kind : {Call::allocate_pinned, Call::make_stream, Call::make_event, Call::set, Call::wait,
                          Call::reached, Call::ring, Call::copy, Call::captured}) {
    for (const int nth : {1, 2, 3, 5}) {
      const auto work = [&](DeviceRank& me) {
        Ones vector(me, 200), other(me, 200);
        require(barrier(me.comm));
        if (me.rank() == 1) me.device.fail_call(kind, nth, off);
        Status outcome;
        for (int round = 0; round < 3 && outcome.ok(); ++round) {
          Message send = message_of(me, 1 - me.rank(), true, vector.memory(), 1600);
          Message recv = message_of(me, 1 - me.rank(), false, other.memory(), 1600);
          me.comm.start(recv);
          me.comm.start(send);
          outcome = me.comm.wait(send.completion, Deadline::after_seconds(60));
          const Status received = me.comm.wait(recv.completion, Deadline::after_seconds(60));
          if (outcome.ok()) outcome = received;
        }
        return outcome;
      };
      met += fails_everywhere(2, staging(), work, "host:1 has fallen", "rank 11 (host-1)") ? 1 : 0;
    }
  }
  EXPECT_GT(met, 20);
}

}  // namespace
}  // namespace fdl::test
