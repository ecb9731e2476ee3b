// StoreExchange passes facts between ranks through the coordinator's store.
#pragma once

#include <string>
#include <string_view>

#include "bootstrap/coordinator/coordinator_client.h"
#include "system/handshake.h"

namespace fdl {

// Each use has its own prefix, so that keys do not collide. The client must outlive it.
class StoreExchange final : public Exchange {
 public:
  StoreExchange(CoordinatorClient& coordinator_client, std::string prefix)
      : coordinator_client_(coordinator_client), prefix_(std::move(prefix)) {}
  Status publish(std::string_view key, std::string_view value) override { return publish_for(0, key, value); }
  Status publish_for(int readers, std::string_view key, std::string_view value) override {
    return coordinator_client_.publish_for(readers, prefix_ + "/" + std::string(key), value);
  }
  Result<std::string> fetch(std::string_view key, Deadline deadline) override {
    return coordinator_client_.fetch(prefix_ + "/" + std::string(key), deadline);
  }
  Result<ManyFacts> fetch_many(std::string_view prefix, const std::vector<int>& ranks, Deadline deadline) override {
    return coordinator_client_.fetch_many(prefix_ + "/" + std::string(prefix), ranks, deadline);
  }

 private:
  CoordinatorClient& coordinator_client_;
  std::string prefix_;
};

}  // namespace fdl
