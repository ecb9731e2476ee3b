// Tests of tuning: tables as text, the choices that they lead to, and their files.
#include "runtime/lifecycle/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "algorithms/choice/choose.h"
#include "algorithms/choice/measured_choice.h"
#include "runtime/lifecycle/compatibility_settings.h"
#include "tests/support/descriptors.h"

namespace fdl {
namespace {

using testing::HasSubstr;

TuningTable read(std::string_view rows) {
  auto table = TuningTable::parse("farandole tuning 1\n" + std::string(rows), "a test");
  if (!table.ok()) ADD_FAILURE() << table.status().text();
  return table.ok() ? table.take() : TuningTable();
}

std::string refusal(std::string_view text) {
  const auto table = TuningTable::parse(text, "my file");
  return table.ok() ? "it was read" : table.status().text();
}

GroupShape one_host(int ranks, const TuningTable& table, std::string transport = "shm") {
  return {.ranks = ranks, .hosts = 1, .ranks_per_host = ranks, .transport = std::move(transport), .table = &table};
}

// ---- Text ----

TEST(TuningText, TextRoundTrips) {
  const TuningTable table = read(
      "# text behind # is ignored\n"
      "allreduce shm 2 65536 whole=6.5 ring=14.25  # nor this\r\n"
      "\n"
      "  allreduce\tshm+tcp 2x4 4096 whole=90.125 ring=310\n"
      "barrier tcp 3 0 dissemination=30\n");
  const auto again = TuningTable::parse(table.text(), "itself");
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(again->text(), table.text());
  const auto* sizes = table.sizes_of({Collective::allreduce, "shm+tcp", 2, 4});
  ASSERT_NE(sizes, nullptr);
  EXPECT_EQ(sizes->at(4096).at("whole"), 90.125);
  EXPECT_EQ(table.sizes_of({Collective::allreduce, "shm+tcp", 1, 8}), nullptr);
}

TEST(TuningText, HasCutsOfBuckets) {
  const TuningTable table = read("buckets tcp 2x4 up_to=1048576 alone_above=65536\nreduce shm 2 8 direct=1\n");
  const auto again = TuningTable::parse(table.text(), "itself");
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(again->text(), table.text());
  EXPECT_FALSE(table.empty());
  const auto cut = table.cut_of({.transport = "tcp", .hosts = 2, .ranks_per_host = 4});
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->bucket_bytes, 1048576u);
  EXPECT_EQ(cut->alone_bytes, 65536u);
  EXPECT_FALSE(table.cut_of({.transport = "tcp", .hosts = 1, .ranks_per_host = 8}));
  EXPECT_EQ(table.fingerprint(), read("reduce shm 2 8 direct=1\n").fingerprint())
      << "only the root of a group uses cuts, so ranks may differ in them";
  for (const char* row :
       {"buckets tcp 4 up_to=5", "buckets tcp 4x up_to=5 alone_above=5", "buckets tcp 4 up_to=5 alone=5",
        "buckets tcp 4 up_to=0 alone_above=0", "buckets tcp 4 up_to=4 alone_above=5",
        "buckets tcp 4 up_to=2000000000 alone_above=5", "buckets tcp 4 up_to=-1 alone_above=5"}) {
    EXPECT_THAT(refusal("farandole tuning 1\n" + std::string(row)), HasSubstr("my file, line 2: ")) << row;
  }
}

TEST(TuningText, EqualRowsHaveEqualFingerprints) {
  const TuningTable one = read("reduce shm 2 8 direct=1\nreduce shm 2 64 direct=2\n");
  const TuningTable other = read("# other words\nreduce   shm 1x2 64 direct=2.0\nreduce shm 2 8 direct=1\n");
  EXPECT_EQ(one.fingerprint(), other.fingerprint());
  EXPECT_THAT(one.fingerprint(), HasSubstr("2 rows, "));
  EXPECT_NE(one.fingerprint(), read("reduce shm 2 8 direct=1\nreduce shm 2 64 direct=2.5\n").fingerprint());
  EXPECT_EQ(TuningTable().fingerprint(), "none");
}

TEST(TuningText, MergeReplacesAllRowsOfAKey) {
  TuningTable table = read("reduce shm 2 8 direct=1\nreduce shm 2 64 direct=2\nreduce tcp 2 8 direct=9\n");
  table.merge(read("reduce shm 2 16 direct=3\n"));
  EXPECT_EQ(table.text(), read("reduce shm 2 16 direct=3\nreduce tcp 2 8 direct=9\n").text());
}

TEST(TuningText, ReadsTheBuiltInTable) { EXPECT_FALSE(TuningTable::built_in().fingerprint().empty()); }

// Error paths follow.

TEST(TuningText, ErrorsNameTheLineAndQuoteTheWord) {
  const std::string title = "farandole tuning 1\n";
  EXPECT_THAT(refusal("farandole tuning 2\n"), HasSubstr("my file, line 1: this version reads 'farandole tuning 1'"));
  EXPECT_THAT(refusal(""), HasSubstr("the first line must be 'farandole tuning 1'"));
  EXPECT_THAT(refusal(title + "\nallreduce shm 2 8\n"), HasSubstr("my file, line 3: a row has"));
  EXPECT_THAT(refusal(title + "allrecude shm 2 8 ring=1\n"), HasSubstr("line 2: 'allrecude' is no collective"));
  for (const char* ranks : {"0", "x2", "2x", "2x0", "-1", "two", "1x2x3"}) {
    EXPECT_THAT(refusal(title + "allreduce shm " + ranks + " 8 ring=1\n"),
                HasSubstr("'" + std::string(ranks) + "' is no number of ranks"));
  }
  EXPECT_THAT(refusal(title + "allreduce shm 2 -8 ring=1\n"), HasSubstr("'-8' is no number of bytes"));
  for (const char* way : {"ring", "ring=", "ring=fast", "ring=-1", "ring=0", "ring=nan", "ring=inf", "=1"}) {
    EXPECT_THAT(refusal(title + "allreduce shm 2 8 " + way + "\n"), HasSubstr("line 2: ")) << way;
  }
  EXPECT_THAT(refusal(title + "allreduce shm 2 8 rign=1\n"),
              HasSubstr("allreduce has no algorithm 'rign'; it has: ring"));
  EXPECT_THAT(refusal(title + "allreduce shm 2 8 rign=1\n"), HasSubstr("`farandole tune` writes such a table anew"));
}

// ---- Times ----

TEST(MeasuredTime, IsInterpolatedBetweenSizes) {
  const TuningTable table = read("reduce shm 2 100 direct=10 binomial_tree=5\nreduce shm 2 300 direct=30\n");
  const auto& sizes = *table.sizes_of({Collective::reduce, "shm", 1, 2});
  EXPECT_EQ(measured_us(sizes, "direct", 0), 10);
  EXPECT_EQ(measured_us(sizes, "direct", 100), 10);
  EXPECT_EQ(measured_us(sizes, "direct", 150), 15);
  EXPECT_EQ(measured_us(sizes, "direct", 300), 30);
  EXPECT_EQ(measured_us(sizes, "direct", 600), 60);
  EXPECT_EQ(measured_us(sizes, "binomial_tree", 100), 5);
  EXPECT_EQ(measured_us(sizes, "binomial_tree", 101), std::nullopt);
  EXPECT_EQ(measured_us(sizes, "binomial_tree", 600), std::nullopt);
  EXPECT_EQ(measured_us(sizes, "whole", 100), std::nullopt);
}

// ---- Choices ----

TEST(MeasuredChoice, IsTheFastestAlgorithmThatCanRun) {
  const TuningTable table = read(
      "allreduce tcp 3 64 ring=5 direct=9 double_binary_tree=3\n"
      "allreduce tcp 3 1048576 ring=500 direct=900 double_binary_tree=700\n"
      "alltoall tcp 3 64 bruck=1 pairwise=2\n");
  const GroupShape shape = one_host(3, table, "tcp");
  const auto small = choose(Collective::allreduce, shape, 64);
  EXPECT_EQ(small->algorithm->name, "double_binary_tree");
  EXPECT_TRUE(small->measured);
  EXPECT_EQ(small->why,
            "3 ranks on 1 host, 64 bytes: double_binary_tree took 3.0 us, ring 5.0 us where it was measured (tuning "
            "table)");
  EXPECT_EQ(choose(Collective::allreduce, shape, 1 << 20)->algorithm->name, "ring");
  EXPECT_EQ(choose(Collective::allreduce, shape, 1 << 28)->algorithm->name, "ring");
  // Requires rank order, then chunks of different sizes.
  EXPECT_EQ(choose(Collective::allreduce, shape, 64, "auto", true)->algorithm->name, "direct");
  EXPECT_EQ(choose(Collective::alltoall, shape, 64)->algorithm->name, "pairwise");
  EXPECT_EQ(choose(Collective::alltoall, shape, 64, "auto", false, true, true)->algorithm->name, "bruck");
  // An algorithm that is named is taken.
  EXPECT_EQ(choose(Collective::allreduce, shape, 64, "direct")->algorithm->name, "direct");
}

TEST(MeasuredChoice, FallsBackToTheModelWithoutMeasurements) {
  const TuningTable table = read("allreduce tcp 3 64 binomial_tree=1\nallreduce tcp 4 64 binomial_tree=1\n");
  const auto by_model = [&](const GroupShape& shape, bool deterministic = false) {
    const auto choice = choose(Collective::allreduce, shape, 64, "auto", deterministic);
    return !choice->measured;
  };
  EXPECT_FALSE(by_model(one_host(3, table, "tcp")));
  EXPECT_TRUE(by_model(one_host(3, table, "tcp"), true)) << "no row in rank order was measured";
  EXPECT_TRUE(by_model(one_host(5, table, "tcp")));
  EXPECT_TRUE(by_model(one_host(3, table, "shm")));
  EXPECT_TRUE(by_model({.ranks = 4, .hosts = 2, .ranks_per_host = 2, .transport = "tcp", .table = &table}));
  EXPECT_TRUE(by_model({.ranks = 4, .hosts = 2, .ranks_per_host = 0, .transport = "tcp", .table = &table}));
  EXPECT_TRUE(by_model({.ranks = 3, .hosts = 1, .ranks_per_host = 3, .transport = "tcp"}));
}

TEST(Preference, PrefersTheWholeUnlessAScheduleIsClearlyFaster) {
  const TuningTable table = read(
      "allreduce shm 2 64 whole=1 ring=0.99\n"
      "allreduce shm 2 1000 whole=10 ring=5\n"
      "allreduce shm 2 2000 whole=10 ring=40\n"
      "reduce shm 2 64 whole=1 direct=2\n"
      "broadcast shm 2 64 chain=2\n");
  const Preference preference(one_host(2, table));
  const auto schedule = [&](int64_t bytes, Need need = {}) {
    return preference.is_schedule(Collective::allreduce, bytes, need);
  };
  EXPECT_FALSE(schedule(0));
  EXPECT_FALSE(schedule(64)) << "a difference of one per cent is noise";
  EXPECT_TRUE(schedule(1000));
  EXPECT_FALSE(schedule(2000));
  EXPECT_FALSE(schedule(1 << 30));
  EXPECT_FALSE(schedule(1000, {.rank_order = true})) << "a ring does not fold in rank order";
  EXPECT_FALSE(preference.is_always_whole(Collective::allreduce));
  for (const auto never : {Collective::reduce, Collective::broadcast, Collective::barrier}) {
    EXPECT_TRUE(preference.is_always_whole(never)) << name_of(never);
  }
  for (const Preference& empty : {Preference(), Preference({.ranks = 2, .hosts = 1, .ranks_per_host = 2})}) {
    EXPECT_TRUE(empty.is_always_whole(Collective::allreduce));
    EXPECT_FALSE(empty.is_schedule(Collective::allreduce, 1000, {}));
  }
}

TEST(Preference, AgreesWithTheTimesAtAnySize) {
  const TuningTable table = read(
      "allgather shm 4 64 whole=1 ring=3\nallgather shm 4 4096 whole=30 ring=6\n"
      "allgather shm 4 65536 whole=50 ring=90\nallgather shm 4 1048576 whole=900 ring=500\n");
  const Preference preference(one_host(4, table));
  const auto& sizes = *table.sizes_of({Collective::allgather, "shm", 1, 4});
  int disagreements = 0;
  for (int64_t bytes = 1; bytes < 4 << 20; bytes += 1 + bytes / 16) {
    const bool quicker = *measured_us(sizes, "ring", bytes) < 0.93 * *measured_us(sizes, "whole", bytes);
    disagreements += preference.is_schedule(Collective::allgather, bytes, {}) == quicker ? 0 : 1;
  }
  EXPECT_LE(disagreements, 12) << "the change is located within an eighth of the distance between two sizes";
}

// ---- Files ----

class TuningFiles : public testing::Test {
 protected:
  TuningFiles() : folder_(testing::TempDir() + "/tuning-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~TuningFiles() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
  }
  static Result<Tuning> load(const std::string& tuning, std::map<std::string, std::string> variables = {}) {
    auto config = Config::read(Environment({}), {{"tuning", tuning}});
    return load_tuning(*config, Environment(std::move(variables)));
  }

  std::string folder_;
  const std::string row_ = "reduce shm 2 64 direct=2\n";
};

TEST_F(TuningFiles, FindsTheUsersOwnFile) {
  write("xdg/farandole/tuning.txt", "farandole tuning 1\n" + row_);
  write("home/.config/farandole/tuning.txt", "farandole tuning 1\n" + row_ + "reduce shm 2 8 direct=1\n");
  EXPECT_EQ(load("auto", {{"XDG_CONFIG_HOME", path("xdg")}, {"HOME", path("home")}})->table.text(), read(row_).text());
  const auto at_home = load("auto", {{"HOME", path("home")}});
  EXPECT_THAT(at_home->table.fingerprint(), HasSubstr("2 rows"));
  EXPECT_EQ(at_home->source, path("home/.config/farandole/tuning.txt"));
  for (const auto& nowhere : {std::map<std::string, std::string>{}, {{"HOME", path("missing")}}}) {
    const auto built_in = load("auto", nowhere);
    EXPECT_EQ(built_in->source, "built-in");
    EXPECT_EQ(built_in->table.text(), TuningTable::built_in().text());
  }
}

TEST_F(TuningFiles, LoadsTheTableThatIsNamed) {
  write("mine.txt", "farandole tuning 1\n" + row_);
  write("home/.config/farandole/tuning.txt", "no table at all");
  const std::map<std::string, std::string> home{{"HOME", path("home")}};
  EXPECT_EQ(load(path("mine.txt"), home)->table.text(), read(row_).text());
  EXPECT_EQ(load("built-in", home)->source, "built-in");
  EXPECT_TRUE(load("off", home)->table.empty());
}

TEST_F(TuningFiles, SaveMergesIntoTheExistingFileAtomically) {
  const std::string file = path("new/folder/tuning.txt");
  ASSERT_TRUE(save_tuning(file, read(row_)).ok());
  ASSERT_TRUE(save_tuning(file, read("reduce tcp 2 64 direct=20\n")).ok());
  EXPECT_EQ(load(file)->table.text(), read(row_ + "reduce tcp 2 64 direct=20\n").text());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path("new/folder")), {}), 1)
      << "no temporary file is left";
}

TEST_F(TuningFiles, ResultsGoToTheTableInForce) {
  write("mine.txt", "farandole tuning 1\n");
  EXPECT_EQ(load(path("mine.txt"))->file, path("mine.txt"));
  EXPECT_EQ(load("auto", {{"HOME", path("home")}})->file, path("home/.config/farandole/tuning.txt"));
  EXPECT_EQ(load("auto", {})->file, "");
  EXPECT_EQ(load("off")->file, "");
}

TEST_F(TuningFiles, CutsComeFromTheTableUnlessFusionIsSet) {
  const Tuning tuning{read("buckets tcp 4 up_to=1048576 alone_above=65536\n"), "a test", path("result.txt")};
  const GroupShape shape{.ranks = 4, .hosts = 1, .ranks_per_host = 4, .transport = "tcp"};
  const auto order = [&](const std::map<std::string, std::string>& options, const GroupShape& given,
                         bool tunes = true) {
    return order_tuning(*Config::read(Environment({}), options), tuning, given, tunes);
  };
  EXPECT_EQ(order({}, shape).cut, (BucketCut{1048576, 65536}));
  EXPECT_FALSE(order({}, shape).tune);
  EXPECT_FALSE(order({{"fusion_bytes", "4K"}}, shape).cut);
  const OrderTuning tuned = order({{"autotune", "1"}, {"autotune_steps", "9"}, {"autotune_log", "x.csv"}}, shape);
  ASSERT_TRUE(tuned.tune);
  EXPECT_EQ(tuned.tune->steps, 9);
  EXPECT_EQ(tuned.log_file, "x.csv");
  EXPECT_FALSE(order({{"autotune", "1"}}, shape, false).tune) << "another rank decides";
  EXPECT_FALSE(order({{"autotune", "1"}, {"lock_after", "0"}}, shape).tune);
  EXPECT_FALSE(order({{"autotune", "1"}, {"fusion_bytes", "0"}}, shape).tune);
  EXPECT_FALSE(order({{"autotune", "1"}}, {.ranks = 1, .transport = "shm"}).tune);

  EXPECT_EQ(*tuned.save({8192, 4096}), path("result.txt"));
  EXPECT_EQ(load(path("result.txt"))->table.text(), read("buckets tcp 4 up_to=8192 alone_above=4096\n").text());
  GroupShape uneven = shape;
  uneven.ranks_per_host = 0;
  EXPECT_EQ(*order({{"autotune", "1"}}, uneven).save({8192, 4096}), "") << "an uneven group has no place in the table";
}

// Error paths follow.

TEST_F(TuningFiles, ErrorsNameMissingOrInvalidFiles) {
  const auto missing = load(path("missing.txt"));
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().text(), HasSubstr("FARANDOLE_TUNING = '" + path("missing.txt") + "' is no file"));
  write("xdg/farandole/tuning.txt", "farandole tuning 1\nreduce shm 2 64 direct=quick\n");
  const auto broken = load("auto", {{"XDG_CONFIG_HOME", path("xdg")}});
  ASSERT_FALSE(broken.ok());
  EXPECT_THAT(broken.status().text(), HasSubstr(path("xdg/farandole/tuning.txt") + ", line 2: 'direct=quick'"));
  // A file that is not a table is not overwritten.
  write("letter.txt", "Dear reader");
  EXPECT_THAT(save_tuning(path("letter.txt"), read(row_)).text(), HasSubstr("letter.txt, line 1"));
  write("folder/file", "");
  EXPECT_THAT(save_tuning(path("folder/file/tuning.txt"), read(row_)).text(), HasSubstr("cannot be written"));
  EXPECT_THAT(save_tuning(path("folder"), read(row_)).text(), HasSubstr("cannot be written: it is a folder"));
}

TEST_F(TuningFiles, AShortageOfDescriptorsIsNoFaultOfTheFile) {
  write("mine.txt", "farandole tuning 1\n" + row_);
  const test::NoDescriptors none;
  const Status status = load(path("mine.txt")).status();
  EXPECT_EQ(status.code(), Code::resource);
  EXPECT_THAT(status.text(), HasSubstr("mine.txt: cannot be read: Too many open files"));
  EXPECT_THAT(status.text(), HasSubstr("raise `ulimit -n`"));
}

TEST_F(TuningFiles, AreCheckedBeforeThereIsATableToSave) {
  write("letter.txt", "Dear reader");
  EXPECT_THAT(check_tuning_file(path("letter.txt")).text(), HasSubstr("letter.txt, line 1"));
  write("folder/file", "");
  EXPECT_THAT(check_tuning_file(path("folder/file/tuning.txt")).text(), HasSubstr("cannot be written"));
  EXPECT_THAT(check_tuning_file(path("folder")).text(), HasSubstr("cannot be written: it is a folder"));
  EXPECT_TRUE(check_tuning_file(path("new/tuning.txt")).ok());
  EXPECT_TRUE(std::filesystem::is_empty(path("new")));
  ASSERT_TRUE(save_tuning(path("mine.txt"), read(row_)).ok());
  EXPECT_TRUE(check_tuning_file(path("mine.txt")).ok());
  EXPECT_EQ(load(path("mine.txt"))->table.text(), read(row_).text());
}

// ---- settings that ranks must have alike ---- ----

TEST(CompatibilitySettings, IncludeTablesButNoSettingThatMayDiffer) {
  const auto settings = [](const std::map<std::string, std::string>& knobs, const TuningTable& table) {
    return compatibility_settings(*Config::read(Environment({}), knobs), table);
  };
  const TuningTable table = read("reduce shm 2 64 direct=2\n");
  const auto standard = settings({}, table);
  EXPECT_EQ(standard, settings({{"log_level", "off"}, {"slice_bytes", "262144"}, {"spin_us", "0"}}, table));
  EXPECT_TRUE(compare_settings("a", standard, "b", standard).ok());
  const Status tables = compare_settings("a", standard, "b", settings({}, TuningTable()));
  EXPECT_EQ(tables.code(), Code::mismatch);
  EXPECT_THAT(tables.text(), HasSubstr("the same tuning table, but a has 1 row, "));
  EXPECT_THAT(tables.text(), HasSubstr(" and b has none; name one table on all ranks with FARANDOLE_TUNING"));
  for (const auto& [knob, value] : std::map<std::string, std::string>{{"transport", "tcp"},
                                                                      {"algorithm", "ring"},
                                                                      {"deterministic", "1"},
                                                                      {"cache_capacity", "0"},
                                                                      {"slice_bytes", "64K"},
                                                                      {"shm_bytes", "2M"}}) {
    const Status differs = compare_settings("a", standard, "b", settings({{knob, value}}, table));
    EXPECT_THAT(differs.text(), HasSubstr("the same " + knob + ", but")) << knob;
  }
}

}  // namespace
}  // namespace fdl
