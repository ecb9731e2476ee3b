// Tests of HostPacking: tensors lie side by side in the buffer, and a missing tensor is zeros there.
#include "runtime/named/bucket/host_packing.h"

#include <numeric>

#include "tests/unit/runtime/named/planned.h"

namespace fdl::test {
namespace {

TEST(HostPacking, PacksTensorsSideBySideAndUnpacksThemToTheirOutputs) {
  Tensor a({1, 2, 3});
  Tensor b({4});
  PlannedBucket planned = planned_sum({&a, &b});
  std::vector<float> buffer(5, -1);
  HostPacking packing(*planned.bucket, planned.entries, as_bytes(buffer));

  EXPECT_FALSE(packing.pack_next());
  EXPECT_EQ(buffer, std::vector<float>({1, 2, 3, -1, -1}));
  EXPECT_TRUE(packing.pack_next());
  EXPECT_EQ(buffer, std::vector<float>({1, 2, 3, 4, -1}));

  for (float& value : buffer) value *= 10;
  EXPECT_FALSE(packing.unpack_next());
  EXPECT_EQ(a.output, std::vector<float>({10, 20, 30}));
  EXPECT_EQ(b.output, std::vector<float>({0}));
  EXPECT_TRUE(packing.unpack_next());
  EXPECT_EQ(b.output, std::vector<float>({40}));
}

TEST(HostPacking, MissingTensorIsZerosAndReceivesNothing) {
  Tensor a({1});
  Tensor missing({7, 7});
  Tensor b({4});
  PlannedBucket planned = planned_sum({&a, &missing, &b});
  planned.entries[1].reset();
  std::vector<float> buffer(4, -1);
  HostPacking packing(*planned.bucket, planned.entries, as_bytes(buffer));

  EXPECT_FALSE(packing.pack_next());
  EXPECT_FALSE(packing.pack_next());
  EXPECT_TRUE(packing.pack_next());
  EXPECT_EQ(buffer, std::vector<float>({1, 0, 0, 4}));

  std::iota(buffer.begin(), buffer.end(), 5.f);
  EXPECT_FALSE(packing.unpack_next());
  EXPECT_FALSE(packing.unpack_next());
  EXPECT_TRUE(packing.unpack_next());
  EXPECT_EQ(a.output, std::vector<float>({5}));
  EXPECT_EQ(missing.output, std::vector<float>({0, 0}));
  EXPECT_EQ(b.output, std::vector<float>({8}));
}

TEST(HostPacking, EmptyTensorTakesNoSpace) {
  Tensor empty({});
  Tensor b({4});
  PlannedBucket planned = planned_sum({&empty, &b});
  std::vector<float> buffer(1, -1);
  HostPacking packing(*planned.bucket, planned.entries, as_bytes(buffer));
  EXPECT_FALSE(packing.pack_next());
  EXPECT_TRUE(packing.pack_next());
  EXPECT_EQ(buffer, std::vector<float>({4}));
}

}  // namespace
}  // namespace fdl::test
