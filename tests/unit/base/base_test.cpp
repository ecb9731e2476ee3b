// Tests of the base module: status, deadline, configuration and log.
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "base/clock.h"
#include "base/config.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/name_list.h"
#include "base/nearest.h"
#include "base/rank_list.h"
#include "base/status.h"

namespace fdl {
namespace {

TEST(StatusTest, SuccessHasNoText) {
  EXPECT_TRUE(ok_status().ok());
  EXPECT_EQ(ok_status().text(), "");
  EXPECT_TRUE(ok_status().while_doing("anything").ok());
}

TEST(StatusTest, KeepsCulpritAndAddsContext) {
  const Status status = Status::blame(3, "host-b", Code::peer_lost, "rank 3 on host-b was lost");
  const Status richer = status.while_doing("joining group 2").during("allreduce 'grad'", "ring, step 1", "all");
  EXPECT_EQ(richer.text(), "rank 3 on host-b was lost, while joining group 2");
  EXPECT_EQ(richer.error().culprit_rank, 3);
  EXPECT_EQ(richer.error().culprit_host, "host-b");
  EXPECT_EQ(richer.error().operation, "allreduce 'grad'");
  EXPECT_EQ(richer.during("broadcast").error().operation, "allreduce 'grad'")
      << "an operation that is set is not replaced";
}

TEST(StatusTest, SystemErrorsNameTheRemedy) {
  const Status status = Status::from_errno("socket", EMFILE);
  EXPECT_EQ(status.code(), Code::resource);
  EXPECT_NE(status.text().find("ulimit -n"), std::string::npos);
}

TEST(ResultTest, HoldsAValueOrAStatus) {
  Result<int> four = 4;
  EXPECT_EQ(*four, 4);
  Result<int> none = Status(Code::timeout, "late");
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.status().text(), "late");
}

TEST(CondVarTest, AnExceptionOfThePredicateLeavesTheMutexLocked) {
  Mutex mutex;
  CondVar changed;
  for (const Deadline deadline : {Deadline::never(), Deadline::after_seconds(10)}) {
    MutexLock lock(mutex);
    EXPECT_THROW(changed.wait(mutex, deadline, []() -> bool { throw std::bad_alloc(); }), std::bad_alloc);
    std::thread([&mutex] {
      const bool is_free = mutex.try_lock();
      EXPECT_FALSE(is_free);
      if (is_free) mutex.unlock();
    }).join();
  }
}

TEST(DeadlineTest, NeverDoesNotPassAndThePastHasPassed) {
  EXPECT_FALSE(Deadline::never().passed());
  EXPECT_EQ(Deadline::never().remaining_ms(), -1);
  EXPECT_TRUE(Deadline::after_ns(-1).passed());
  EXPECT_EQ(Deadline::after_ns(-5).remaining_ns(), 0);
  EXPECT_GT(Deadline::after_seconds(1000).remaining_ms(), 0);
}

TEST(DeadlineTest, DurationsThatDoNotFitDoNotPass) {
  EXPECT_EQ(seconds_to_ns(1.5), 1'500'000'000);
  EXPECT_EQ(seconds_to_ns(-1.5), -1'500'000'000);
  for (const double seconds : {2.4e9, 9.3e9, 1e10, 99999999999.0, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(seconds_to_ns(seconds), kLongest_ns) << seconds;
    EXPECT_EQ(seconds_to_ns(-seconds), -kLongest_ns) << seconds;
    EXPECT_TRUE(Deadline::after_seconds(seconds).is_never()) << seconds;
    EXPECT_TRUE(Deadline::after_seconds(-seconds).passed()) << seconds;
    EXPECT_FALSE(Deadline::at_ns(now_ns() + 2 * seconds_to_ns(seconds)).passed()) << seconds;
  }
  EXPECT_FALSE(Deadline::after_seconds(2.3e9).is_never());
}

TEST(ParseBytesTest, ParsesUnitsOf1024) {
  EXPECT_EQ(*parse_bytes("4"), 4u);
  EXPECT_EQ(*parse_bytes("64K"), 65536u);
  EXPECT_EQ(*parse_bytes("1MiB"), 1048576u);
  EXPECT_EQ(*parse_bytes("1.5k"), 1536u);
  EXPECT_EQ(*parse_bytes("2GB"), 2147483648u);
}

TEST(ParseBytesTest, RejectsInvalidSizes) {
  for (const char* text : {"", "K", "-1", "1.5", "4X", "4 K", "nan", "1e30"}) {
    auto bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_NE(bytes.status().text().find("'" + std::string(text) + "'"), std::string::npos);
  }
}

Environment environment(std::map<std::string, std::string> variables) { return Environment(std::move(variables)); }

const Setting& setting(const Config& config, const std::string& name) {
  for (const Setting& row : config.settings) {
    if (row.name == name) return row;
  }
  ADD_FAILURE() << "no setting " << name;
  return config.settings.front();
}

TEST(ParseDurationTest, ParsesTheUnitsOfTheSettings) {
  for (const auto& [text, seconds] :
       {std::pair("0.5", 0.5), std::pair("10s", 10.0), std::pair("250ms", 0.25), std::pair("2m", 120.0)}) {
    EXPECT_DOUBLE_EQ(*parse_duration(text), seconds) << text;
  }
  for (const char* text : {"", "-5", "nan", "inf", "2h", "soon"}) {
    EXPECT_EQ(parse_duration(text).status().text(),
              "'" + std::string(text) + "' is not a duration such as 0.5, 10 or 2m");
  }
}

TEST(ConfigTest, DefaultsParse) {
  auto config = Config::read(environment({}));
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_EQ(config->fusion_bytes, 64_MiB);
  EXPECT_EQ(config->transport, "auto");
  EXPECT_FALSE(config->deterministic);
  for (const Setting& row : config->settings) EXPECT_EQ(row.source, "default") << row.name;
}

TEST(ConfigTest, OptionPrecedesVariablePrecedesAliasPrecedesDefault) {
  const std::map<std::string, std::string> both{{"FARANDOLE_FUSION_BYTES", "2M"}, {"HOROVOD_FUSION_THRESHOLD", "4096"}};
  auto from_alias = Config::read(environment({{"HOROVOD_FUSION_THRESHOLD", "4096"}}));
  auto from_variable = Config::read(environment(both));
  auto from_option = Config::read(environment(both), {{"fusion_bytes", "8K"}});
  EXPECT_EQ(from_alias->fusion_bytes, 4096u);
  EXPECT_EQ(setting(*from_alias, "fusion_bytes").source, "HOROVOD_FUSION_THRESHOLD");
  EXPECT_EQ(from_variable->fusion_bytes, 2_MiB);
  EXPECT_EQ(setting(*from_variable, "fusion_bytes").source, "FARANDOLE_FUSION_BYTES");
  EXPECT_EQ(from_option->fusion_bytes, 8_KiB);
  EXPECT_EQ(setting(*from_option, "fusion_bytes").source, "option");
}

TEST(ConfigTest, CompatibilitySettingsHaveACanonicalForm) {
  auto one = Config::read(environment({}), {{"slice_bytes", "256K"}, {"deterministic", "yes"}});
  auto other = Config::read(environment({}), {{"slice_bytes", "262144"}, {"deterministic", "1"}});
  for (const char* name :
       {"transport", "algorithm", "deterministic", "cache_capacity", "slice_bytes", "shm_bytes", "agreement_width"}) {
    EXPECT_TRUE(setting(*one, name).alike) << name;
    EXPECT_EQ(setting(*one, name).meant, setting(*other, name).meant) << name;
  }
  EXPECT_EQ(setting(*one, "slice_bytes").meant, "262144");
  for (const char* name : {"interfaces", "job_key", "log_level", "spin_us", "fusion_bytes"}) {
    EXPECT_FALSE(setting(*one, name).alike) << name;
  }
}

TEST(ConfigTest, AnEmptyVariableCountsAsUnset) {
  EXPECT_EQ(Config::read(environment({{"FARANDOLE_TRANSPORT", ""}}))->transport, "auto");
}

TEST(ConfigTest, TranslatesHorovodVariablesOfAnotherForm) {
  auto config = Config::read(environment({{"HOROVOD_STALL_CHECK_DISABLE", "1"},
                                          {"HOROVOD_STALL_CHECK_TIME_SECONDS", "5"},
                                          {"HOROVOD_LOG_LEVEL", "INFO"},
                                          {"HOROVOD_START_TIMEOUT", "7"}}));
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_EQ(config->stall_warning_s, 0);
  EXPECT_EQ(setting(*config, "stall_warning_s").source, "HOROVOD_STALL_CHECK_DISABLE");
  EXPECT_EQ(config->log_level, "info");
  EXPECT_EQ(config->start_timeout_s, 7);
  auto on =
      Config::read(environment({{"HOROVOD_STALL_CHECK_DISABLE", "0"}, {"HOROVOD_STALL_CHECK_TIME_SECONDS", "5"}}));
  EXPECT_EQ(on->stall_warning_s, 5);
  auto own = Config::read(environment({{"HOROVOD_STALL_CHECK_DISABLE", "1"}, {"FARANDOLE_STALL_WARNING_S", "3"}}));
  EXPECT_EQ(own->stall_warning_s, 3);
}

TEST(ConfigTest, ListsHorovodVariablesWithoutEffect) {
  auto config = Config::read(environment({{"HOROVOD_CYCLE_TIME", "5"},
                                          {"HOROVOD_AUTOTUNE", "1"},
                                          {"HOROVOD_AUTOTUNE_LOG", "/tmp/log"},
                                          {"HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "0.8"},
                                          {"HOROVOD_HIERARCHICAL_ALLREDUCE", "0"},
                                          {"HOROVOD_DYNAMIC_PROCESS_SETS", "1"},
                                          {"HOROVOD_RANK", "0"}}));
  ASSERT_EQ(config->without_meaning.size(), 2u);
  EXPECT_NE(config->without_meaning[0].find("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE=0.8 does nothing"),
            std::string::npos);
  EXPECT_NE(config->without_meaning[1].find("HOROVOD_CYCLE_TIME=5 does nothing"), std::string::npos);
}

TEST(ConfigTest, TakesTheTunersSettingsFromHorovodsVariables) {
  auto config = Config::read(environment({{"HOROVOD_AUTOTUNE", "1"},
                                          {"HOROVOD_AUTOTUNE_LOG", "/tmp/log"},
                                          {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "7"},
                                          {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "11"}}));
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_TRUE(config->autotune);
  EXPECT_EQ(config->autotune_log, "/tmp/log");
  EXPECT_EQ(config->autotune_warmup, 7);
  EXPECT_EQ(config->autotune_steps, 11);
  EXPECT_TRUE(config->without_meaning.empty());
}

TEST(ConfigTest, SuggestsTheSettingForAMisspeltVariable) {
  auto config = Config::read(environment({{"FARANDOLE_TRANSPROT", "shm"},
                                          {"FARANDOLE_JOB_KEYS", "a secret"},
                                          {"FARANDOLE_RANK", "0"},
                                          {"FARANDOLE_MY_OWN_PROGRAM", "1"},
                                          {"FARANDOLE_SPIN", ""}}));
  ASSERT_EQ(config->without_meaning.size(), 2u);
  EXPECT_EQ(config->without_meaning[0],
            "FARANDOLE_JOB_KEYS is not a variable of this version; do you mean FARANDOLE_JOB_KEY?");
  EXPECT_EQ(config->without_meaning[1],
            "FARANDOLE_TRANSPROT is not a variable of this version; do you mean FARANDOLE_TRANSPORT?");
}

TEST(Distance, CountsInsertionsRemovalsReplacementsAndExchanges) {
  EXPECT_EQ(distance("", "abc"), 3u);
  EXPECT_EQ(distance("abc", "abc"), 0u);
  EXPECT_EQ(distance("transprot", "transport"), 1u);
  EXPECT_EQ(distance("kitten", "sitting"), 3u);
}

TEST(Nearest, IsTheFirstOfTheClosestNamesThatTwoChangesReach) {
  EXPECT_EQ(nearest("port", {"sport", "part", "port_count"}), "sport");
  EXPECT_EQ(nearest("part", {"sport", "part"}), "part");
  EXPECT_EQ(nearest("ab", {"abcde", "abcd"}), "abcd");
  EXPECT_EQ(nearest("abcd", {"a", "ab"}), "ab");
  EXPECT_EQ(nearest("", {"abc", "ab"}), "ab");
  EXPECT_EQ(nearest("ab", {"abcde", "xyz"}), std::nullopt);
  EXPECT_EQ(nearest(std::string(100'000, 'a'), {"a", "aa"}), std::nullopt);
}

TEST(ConfigTest, ReadsEveryType) {
  auto config = Config::read(environment({{"FARANDOLE_DETERMINISTIC", "Yes"},
                                          {"FARANDOLE_SPIN_US", "7"},
                                          {"FARANDOLE_STALL_WARNING_S", "250ms"},
                                          {"FARANDOLE_START_TIMEOUT_S", "2m"},
                                          {"FARANDOLE_ALGORITHM", "ring"}}));
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_TRUE(config->deterministic);
  EXPECT_EQ(config->spin_us, 7);
  EXPECT_DOUBLE_EQ(config->stall_warning_s, 0.25);
  EXPECT_DOUBLE_EQ(config->start_timeout_s, 120);
  EXPECT_EQ(config->algorithm, "ring");
}

// ---- Error paths ----

TEST(ConfigTest, QuotesAnInvalidValueWithItsVariable) {
  for (const auto& [variable, value] : std::map<std::string, std::string>{{"FARANDOLE_FUSION_BYTES", "64 megs"},
                                                                          {"FARANDOLE_SPIN_US", "-1"},
                                                                          {"FARANDOLE_DETERMINISTIC", "maybe"},
                                                                          {"FARANDOLE_TIMEOUT_S", "soon"},
                                                                          {"HOROVOD_CACHE_CAPACITY", "1x"}}) {
    auto config = Config::read(environment({{variable, value}}));
    ASSERT_FALSE(config.ok()) << variable;
    EXPECT_EQ(config.status().code(), Code::invalid_argument);
    EXPECT_NE(config.status().text().find(variable), std::string::npos) << config.status().text();
    EXPECT_NE(config.status().text().find("'" + value + "'"), std::string::npos) << config.status().text();
  }
}

TEST(ConfigTest, RejectsAnUnknownOption) {
  auto config = Config::read(environment({}), {{"fusion", "1"}});
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.status().text().find("'fusion'"), std::string::npos);
}

TEST(LogTest, UsesTheSinkOfTheApplication) {
  std::vector<std::string> lines;
  set_log_level(LogLevel::info);
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  log_info("{} ranks on {} hosts", 16, 2);
  log_debug("not this");
  set_log_sink(nullptr);
  set_log_level(LogLevel::warning);
  EXPECT_EQ(lines, std::vector<std::string>{"16 ranks on 2 hosts"});
}

TEST(RankList, KeepsTheOrderOfTheRanks) {
  const std::map<std::string, std::vector<int>> lists{{"", {}},
                                                      {"5", {5}},
                                                      {"5,6", {5, 6}},
                                                      {"5-7", {5, 6, 7}},
                                                      {"0-7,12,3,4", {0, 1, 2, 3, 4, 5, 6, 7, 12, 3, 4}},
                                                      {"2,1,0", {2, 1, 0}},
                                                      {"1,1", {1, 1}}};
  for (const auto& [text, ranks] : lists) {
    EXPECT_EQ(rank_list_text(ranks), text);
    EXPECT_EQ(parse_rank_list(text, ranks.size()), ranks) << text;
    if (ranks.empty()) continue;
    EXPECT_EQ(parse_rank_list(text, ranks.size() - 1), std::nullopt) << text;
  }
  EXPECT_EQ(parse_rank_list("0-1", 2), (std::vector<int>{0, 1}));
}

TEST(RankList, RefusesWhatIsNoList) {
  for (const char* text : {"x", "-1", "0-", "0-0", "1-0", "0,", ",0", "0,,1", "0 1", "0-1-2", "0--1", "2147483648",
                           "0-2147483647", "0-2147483648"}) {
    EXPECT_EQ(parse_rank_list(text, 1000), std::nullopt) << text;
  }
}

TEST(RankList, IsWrittenForPeople) {
  EXPECT_EQ(describe_ranks({}), "");
  EXPECT_EQ(describe_ranks({4}), "rank 4");
  EXPECT_EQ(describe_ranks({4, 5}), "ranks 4 and 5");
  EXPECT_EQ(describe_ranks({14, 0, 1, 2, 3, 12}), "ranks 0-3, 12 and 14");
  EXPECT_EQ(describe_ranks({0, 2, 4, 6, 8, 10, 12, 14}), "ranks 0, 2, 4, 6, 8, 10, 12 and 14");
  EXPECT_EQ(describe_ranks({0, 2, 4, 6, 8, 10, 12, 14, 15, 20, 21, 22}), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 4 more");
}

TEST(NameList, CountsTheNamesThatItLeavesOut) {
  EXPECT_EQ(name_list({}, 3), "");
  EXPECT_EQ(name_list({"a"}, 3), "a");
  EXPECT_EQ(name_list({"a", "b"}, 3), "a and b");
  EXPECT_EQ(name_list({"a", "b", "c"}, 3), "a, b and c");
  EXPECT_EQ(name_list({"a", "b", "c", "d"}, 3), "a, b, c and 1 more");
  EXPECT_EQ(name_list({"a", "b", "c", "d", "e"}, 3, " hosts"), "a, b, c and 2 more hosts");
  EXPECT_EQ(first_of_names({"a", "b"}, 7), "a, b and 5 more");
}

TEST(JsonText, EscapesAnyBytes) {
  EXPECT_EQ(json_text("a\"b\\c\n\x01"), "a\\\"b\\\\c\\u000a\\u0001");
  EXPECT_EQ(json_text("gr\xc3\xa4"
                      "d \xe2\x82\xac \xf0\x9f\x90\xb4"),
            "gr\xc3\xa4"
            "d \xe2\x82\xac \xf0\x9f\x90\xb4");
  EXPECT_EQ(json_text("\xff"
                      "a\xc3"),
            "?a?");
  EXPECT_EQ(json_text("\xc0\x80\xed\xa0\x80"), "?????");
}

TEST(Printable, EscapesControlCharactersAndOtherBytesThanUtf8) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("a 'b' \\ \xc3\xa4 \xe2\x82\xac"), "a 'b' \\ \xc3\xa4 \xe2\x82\xac");
  EXPECT_EQ(printable("\x1b[31m\r\n\t\x7f"), "\\x1b[31m\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m\xc2\xa0"),
            "\\xc2\\x9b31m\xc2\xa0")
      << "U+009B begins a sequence as ESC [ does";
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(quoted_text("a\n"), "'a\\x0a'");
}

TEST(RankList, NamesEachHostOnce) {
  EXPECT_EQ(describe_ranks({3}, {}), "rank 3");
  EXPECT_EQ(describe_ranks({3}, {"b"}), "rank 3 on b");
  EXPECT_EQ(describe_ranks({3, 4, 5, 6}, {"b", "b", "a", "a"}), "ranks 3-6 on a and b");
  EXPECT_EQ(describe_ranks({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}),
            "ranks 0-9 on a, b, c, d, e, f, g, h and 2 more hosts");
}

}  // namespace
}  // namespace fdl
