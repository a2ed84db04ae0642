#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "problem.hpp"

/// What the plugin says it can do.
namespace fastpath::conformance {
namespace {

/// Whether two answers to one question are the same.
std::string unlike(const Answer& a, const Answer& b) {
  if (a.outcome.status != b.outcome.status)
    return "status " + status_name(a.outcome.status) + ", then " + status_name(b.outcome.status);
  if (a.c.verdict != b.c.verdict)
    return "verdict " + std::to_string(a.c.verdict) + ", then " + std::to_string(b.c.verdict);
  if (a.blockers != b.blockers) return "other reasons than before";
  if (a.c.min_edges != b.c.min_edges || a.c.max_edges != b.c.max_edges) return "another window of sizes than before";
  if (a.c.tolerance != b.c.tolerance || a.c.flags != b.c.flags || a.c.rank != b.c.rank ||
      a.c.math_mode != b.c.math_mode || a.c.prior_edges != b.c.prior_edges) {
    return "other promises than before";
  }
  return {};
}

void check_pure(Trial& trial) {
  Session session(trial);
  const auto question = [&](const Subject& s) { return ask(session, {&s.op, s.dtype, s.passes}, s.device); };
  const std::vector<Subject> all = subjects(session);  // asked before any device is open
  OpCase unknown = all.front().op;
  unknown.op = "org.example.unknown";
  for (const Subject& subject : all) {
    trial.step(subject.name() + ": asked twice");
    const std::string difference = unlike(subject.answer, question(subject));
    trial.expect(difference.empty(), "P-44", difference, "the same answer");
  }
  for (std::size_t i = all.size(); i-- > 0;) {
    trial.step(all[i].name() + ": asked in another order, with an open device");
    OpenDevice device(session, all[i].device);
    ask(session, {&unknown, all[i].dtype, FP_PASS_FORWARD}, all[i].device);
    const std::string difference = unlike(all[i].answer, question(all[i]));
    trial.expect(difference.empty(), "P-44", difference, "the same answer");
  }
}

/// What holds for every answer, whatever was asked.
void judge(Trial& trial, const Answer& answer, std::int32_t math_mode = FP_MATH_FULL) {
  if (!answer.outcome.ok()) return;
  const fp_kernel_answer& c = answer.c;
  const bool no = c.verdict == FP_ANSWER_NO;
  trial.expect(no || c.verdict == FP_ANSWER_YES || c.verdict == FP_ANSWER_UNKNOWN, "P-46",
               "verdict " + std::to_string(c.verdict), "0 (no), 1 (yes) or 2 (unknown until open)");
  trial.expect(!no || !answer.blockers.empty(), "P-45", "a no without a reason", "every reason");
  trial.expect(c.verdict != FP_ANSWER_YES || answer.blockers.empty(), "P-45",
               "a yes with reasons against it: " + answer.shown(), "a yes without");
  for (const auto& [reason, text] : answer.blockers) {
    trial.expect(reason >= FP_REASON_OTHER && reason <= FP_REASON_SIZE, "P-45", "reason " + std::to_string(reason),
                 "one of FP_REASON_*");
    trial.expect(!text.empty(), "P-45", "a reason " + std::to_string(reason) + " without a text",
                 "what was found, and what would be accepted");
  }
  if (no) return;
  trial.expect(c.min_edges >= 0 && c.max_edges >= 0 && (c.max_edges == 0 || c.max_edges >= c.min_edges), "P-46",
               "sizes from " + std::to_string(c.min_edges) + " to " + std::to_string(c.max_edges) + " edges",
               "0 <= min_edges <= max_edges, or max_edges 0");
  trial.expect(c.tolerance >= 0 && c.tolerance < 1, "P-46", "tolerance " + std::to_string(c.tolerance),
               "0 or more, and below 1");
  trial.expect(math_mode == FP_MATH_REDUCED || c.math_mode == FP_MATH_FULL, "P-46",
               "math mode " + std::to_string(c.math_mode), "the full one, for no lower one was accepted");
  constexpr std::uint32_t kFlags = FP_KERNEL_DETERMINISTIC | FP_KERNEL_THREAD_SAFE | FP_KERNEL_CAPTURE_SAFE;
  trial.expect((c.flags & ~kFlags) == 0, "P-46", "flags " + std::to_string(c.flags), "those of FP_KERNEL_*");
}

void check_consistent(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  const int drawn = trial.options.quick ? 5 : 25;
  for (const fp_device_info& device : session.devices()) {
    for (const std::string& name : known_ops()) {
      std::vector<OpCase> all = corner_cases(name);
      for (int i = 0; i < drawn; ++i) all.push_back(random_case(name, random, 6));
      for (const OpCase& op : all) {
        for (const sdk::DType dtype : {sdk::kFloat32, sdk::kFloat64}) {
          for (const std::uint32_t passes : {1u, 3u, 15u}) {
            trial.step(op.op + " " + op.label + ", " + dtype.name() + ", passes " + std::to_string(passes));
            judge(trial, ask(session, {&op, dtype, passes}, device));
          }
        }
      }
    }
  }
}

void check_unknown(Trial& trial) {
  Session session(trial);
  const auto refused = [&](const std::string& what, const Asked& asked, const fp_device_info& device) {
    trial.step(what);
    const Answer answer = ask(session, asked, device);
    judge(trial, answer);
    if (!known_status(answer.outcome.status)) return;
    const bool no = answer.outcome.ok()
                        ? answer.c.verdict == FP_ANSWER_NO
                        : answer.outcome.status == FP_E_UNSUPPORTED || answer.outcome.status == FP_E_INVALID_ARGUMENT;
    trial.expect(no, "P-47", "it says " + answer.shown(), "no");
  };
  for (const Subject& subject : subjects(session)) {
    const std::string name = subject.name() + ": ";
    const Asked plain{&subject.op, subject.dtype, subject.passes};
    OpCase op = subject.op;
    op.op = subject.op.op + "_of_nobody";
    refused(name + "an op of another name", {&op, subject.dtype, subject.passes}, subject.device);
    op = subject.op;
    op.op = "";
    refused(name + "an op without a name", {&op, subject.dtype, subject.passes}, subject.device);
    op = subject.op;
    for (const std::int32_t version : {0, -1, 999}) {
      op.version = version;
      refused(name + "version " + std::to_string(version) + " of the op", {&op, subject.dtype, subject.passes},
              subject.device);
    }
    Asked asked = plain;
    for (const sdk::DType dtype :
         {sdk::DType{FP_CODE_FLOAT, 16, 1}, sdk::DType{FP_CODE_INT, 32, 1}, sdk::DType{FP_CODE_FLOAT, 32, 4},
          sdk::DType{FP_CODE_FLOAT, 128, 1}, sdk::DType{4, 16, 1}, sdk::DType{250, 64, 1}}) {
      asked.dtype = dtype;
      refused(name + dtype.name(), asked, subject.device);
    }
    asked = plain;
    for (const std::uint32_t pass : {1u << 4, 1u << 31}) {
      asked.passes = subject.passes | pass;
      refused(name + "passes " + std::to_string(asked.passes), asked, subject.device);
    }
    fp_device_info device = subject.device;
    device.type = 77;
    refused(name + "a device of unknown type", plain, device);
    op = subject.op;
    op.config.set("attribute_of_nobody", sdk::Attributes::Integers{1});
    refused(name + "an attribute that no op has", {&op, subject.dtype, subject.passes}, subject.device);
    for (const auto& [attribute, value] : subject.op.config.values()) {
      auto values = subject.op.config.values();
      values.erase(attribute);
      op.config = sdk::Attributes(values);
      refused(name + "without the attribute '" + attribute + "'", {&op, subject.dtype, subject.passes}, subject.device);
      values[attribute] = value.index() == 2 ? sdk::Attributes::Value(sdk::Attributes::Reals{1.5})
                                             : sdk::Attributes::Value(std::string("3x7q+"));
      op.config = sdk::Attributes(values);
      refused(name + "the attribute '" + attribute + "' of another kind", {&op, subject.dtype, subject.passes},
              subject.device);
      if (value.index() == 2) {
        values[attribute] = std::string("nonsense");
      } else if (value.index() == 0) {
        values[attribute] = sdk::Attributes::Integers{-7};
      } else {
        values[attribute] = sdk::Attributes::Reals{};
      }
      op.config = sdk::Attributes(values);
      refused(name + "the attribute '" + attribute + "' with a value that makes no sense",
              {&op, subject.dtype, subject.passes}, subject.device);
    }
    // Lists that a host of this header would not make.
    const auto malformed = [&](const std::string& what, std::int32_t kind, const char* text, std::uint64_t text_size,
                               const void* data, std::uint64_t count, bool items) {
      trial.step(name + what);
      Structs structs(session.dialect);
      const fp_kernel_query* query = put_query(structs, session.dialect, plain, subject.device);
      fp_attribute attribute = sdk::abi_struct<fp_attribute>();
      attribute.kind = kind;
      attribute.name = text;
      attribute.name_size = text_size;
      attribute.data = data;
      attribute.count = count;
      std::vector<fp_attribute> all(query->config->items, query->config->items + query->config->count);
      all.insert(all.begin(), attribute);
      fp_attribute_list list = sdk::abi_struct<fp_attribute_list>();
      list.stride = sizeof(fp_attribute);
      list.count = all.size();
      list.items = items ? all.data() : nullptr;
      fp_kernel_query changed = *query;
      changed.config = &list;
      fp_kernel_answer answer = sdk::abi_struct<fp_kernel_answer>();
      const Outcome outcome = session.call("query of a kernel", [&](const fp_error_sink* e) {
        return session.kernels.query(session.plugin, &changed, &answer, e);
      });
      trial.expect(!outcome.ok() || answer.verdict == FP_ANSWER_NO, "P-47", "it says yes", "no, or an error");
    };
    const std::int64_t number = 1;
    malformed("an attribute of unknown kind", 9, "zzz", 3, &number, 1, true);
    malformed("an attribute without a name", FP_ATTRIBUTE_I64, nullptr, 0, &number, 1, true);
    malformed("an attribute without data", FP_ATTRIBUTE_I64, "zzz", 3, nullptr, 5, true);
    malformed("attributes at a null address", FP_ATTRIBUTE_I64, "zzz", 3, &number, 1, false);
  }
}

void check_kept(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  session.watch = false;
  for (const Subject& subject : subjects(session)) {
    std::vector<OpCase> all = corner_cases(subject.op.op);
    all.insert(all.begin(), subject.op);
    OpenDevice device(session, subject.device);
    for (const OpCase& op : all) {
      const Answer answer = ask(session, {&op, subject.dtype, subject.passes}, subject.device);
      if (!answer.yes()) continue;
      trial.step(subject.name() + ", " + op.label);
      Kernel kernel(session, device.get(), subject.device, {&op, subject.dtype, subject.passes});
      if (!kernel && answer.c.verdict == FP_ANSWER_UNKNOWN && kernel.created().status == FP_E_UNSUPPORTED) continue;
      const Problem problem(op, subject.dtype, ordinary_graph(3, random), 7, random);
      if (!prepare(session, kernel, problem)) continue;
      for (const std::uint32_t pass : passes_of(subject)) {
        Evaluation evaluation = problem.of(pass);
        run_well(session, kernel, evaluation);
      }
    }
  }
}

void check_ops(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  std::set<std::string> seen;
  for (const Claim& claim : session.claims()) {
    const std::string name =
        claim.op + " version " + std::to_string(claim.version) + " on device type " + std::to_string(claim.device_type);
    trial.expect(!claim.op.empty(), "P-49", "an op without a name", "its name");
    trial.expect(seen.insert(name).second, "P-49", name + " twice", "each once");
    constexpr std::uint32_t kDTypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64, kPasses = 15;
    trial.expect(claim.dtypes != 0 && (claim.dtypes & ~kDTypes) == 0, "P-49",
                 name + ": dtypes " + std::to_string(claim.dtypes), "bits of FP_DTYPE_BIT_*, at least one");
    trial.expect(claim.passes != 0 && (claim.passes & ~kPasses) == 0, "P-49",
                 name + ": passes " + std::to_string(claim.passes), "bits of FP_PASS_*, at least one");
  }
  constexpr int kDrawn = 12;
  for (const fp_device_info& device : session.devices()) {
    for (const std::string& op : known_ops()) {
      std::vector<OpCase> all = corner_cases(op);
      all.insert(all.begin(), small_case(op));
      for (int i = 0; i < kDrawn; ++i) all.push_back(random_case(op, random, 3));
      for (const auto& [bit, dtype] : {std::pair{FP_DTYPE_BIT_F32, sdk::kFloat32}, {FP_DTYPE_BIT_F64, sdk::kFloat64}}) {
        for (const std::uint32_t pass : {1u, 2u, 4u, 8u}) {
          bool listed = false;
          for (const Claim& claim : session.claims()) {
            listed = listed || (claim.op == op && claim.version == all[0].version && claim.device_type == device.type &&
                                (claim.dtypes & bit) != 0 && (claim.passes & pass) != 0);
          }
          trial.step(op + ", " + dtype.name() + ", " + pass_name(pass));
          bool offered = false;
          for (const OpCase& candidate : all) {
            if (ask(session, {&candidate, dtype, pass}, device).yes()) {
              offered = true;
              break;
            }
          }
          trial.expect(!listed || offered, "P-49", "it is listed, but no configuration that was tried gets a yes",
                       "that what is listed is offered");
          trial.expect(listed || !offered, "P-49", "it is offered, but not listed", "that what is offered is listed");
        }
      }
    }
  }
}

void check_names(Trial& trial) {
  Session session(trial);
  for (const Claim& claim : session.claims()) {
    const auto& known = known_ops();
    const bool own = std::find(known.begin(), known.end(), claim.op) != known.end();
    trial.expect(own || claim.op.find('.') != std::string::npos, "P-50", "an op named '" + claim.op + "'",
                 "an op of fastpath, or a reverse-DNS name");
  }
}

/// Sizes at which work is shared among threads.
Problem large_problem(const Subject& subject, Random& random) {
  constexpr std::int64_t kNodes = 400, kReceivers = 380;
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;
  for (int e = 0; e < 5000; ++e) {
    edges.emplace_back(static_cast<std::int32_t>(cases::between(random, 0, kReceivers - 1)),
                       static_cast<std::int32_t>(cases::between(random, 0, kNodes - 1)));
  }
  return Problem(subject.op, subject.dtype, make_graph("5000 edges", kNodes, kReceivers, std::move(edges), 3, random),
                 3001, random);
}

void check_deterministic(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  session.watch = false;
  bool any = false;
  for (const Subject& subject : subjects(session)) {
    if ((subject.answer.c.flags & FP_KERNEL_DETERMINISTIC) == 0) continue;
    any = true;
    const Problem problem = large_problem(subject, random);
    OpenDevice device(session, subject.device);
    Kernel first(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    Kernel second(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    if (!prepare(session, first, problem) || !prepare(session, second, problem, 7)) continue;
    for (const std::uint32_t pass : passes_of(subject)) {
      Evaluation expected = problem.of(pass);
      if (!run_well(session, first, expected)) continue;
      for (const int threads : {1, 2, 3, 4, 7, 2}) {
        for (Kernel* kernel : {&first, &second}) {
          trial.step(subject.name() + ", " + pass_name(pass) + " with " + std::to_string(threads) + " threads" +
                     (kernel == &second ? ", another kernel" : ""));
          Evaluation again = problem.of(pass, kPoisonFinite);
          RunOptions options;
          options.threads = threads;
          if (!run_well(session, *kernel, again, options)) continue;
          trial.expect(same_bits(again, expected), "P-51", "other bits than the first run with one thread gave",
                       "the same bits, for it claims to be deterministic");
        }
      }
    }
  }
  if (!any) trial.skip("no kernel claims to be deterministic");
}

void check_thread_safe(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  session.watch = false;
  bool any = false;
  constexpr int kThreads = 3;
  const int rounds = trial.options.quick ? 3 : 10;
  for (const Subject& subject : subjects(session)) {
    if ((subject.answer.c.flags & FP_KERNEL_THREAD_SAFE) == 0) continue;
    any = true;
    trial.step(subject.name() + ": one kernel in several threads");
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem parameters(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (!prepare(session, kernel, parameters)) continue;
    // A problem for each thread, of its own size, on the same parameters.
    std::vector<Problem> problems;
    std::vector<std::vector<Evaluation>> expected(kThreads);
    for (int t = 0; t < kThreads; ++t)
      problems.emplace_back(subject.op, subject.dtype, ordinary_graph(3, random), 5 + 40 * t, random);
    for (std::size_t t = 0; t < problems.size(); ++t) {
      for (const std::uint32_t pass : passes_of(subject)) {
        expected[t].push_back(problems[t].of(pass));
        if (!run_well(session, kernel, expected[t].back())) trial.stop();
      }
    }
    if (kernel.saved_bytes() != 0) {
      trial.note("kernels that keep results for backward are run with a buffer for each call");
    }
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < problems.size(); ++t) {
      threads.emplace_back([&, t] {
        try {
          for (int round = 0; round < rounds; ++round) {
            for (const Evaluation& right : expected[t]) {
              Evaluation evaluation = problems[t].of(right.pass);
              RunOptions options;
              options.check = false;  // the others read the same parameters meanwhile
              if (!run_well(session, kernel, evaluation, options, "P-51")) return;
              for (std::size_t i = 0; i < results_of(right).size(); ++i) {
                const double error = difference(*results_of(evaluation)[i], *results_of(right)[i]);
                trial.expect(error <= tolerance_of(subject.dtype, subject.answer.c.tolerance), "P-51",
                             "results differ by " + std::to_string(error) + " while others run the same kernel",
                             "the results of one thread, for it claims to be thread-safe");
              }
            }
          }
        } catch (const Stop&) {
        } catch (const std::exception& error) {
          trial.fail("kit", error.what(), "no fault of the kit");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  if (!any) trial.skip("no kernel claims to be thread-safe");
}

void check_numerics_version(Trial& trial) {
  if (trial.options.against.empty()) trial.skip("no earlier version of the plugin was named, by --against");
  Options options = trial.options;
  options.plugin = options.against;
  Trial of_earlier(options, trial.info, -1);
  std::unique_ptr<Session> earlier;
  Session session(trial);
  try {
    earlier = std::make_unique<Session>(of_earlier);
  } catch (const Stop&) {
    trial.skip("the earlier version cannot be loaded");
  }
  const auto id = [](const Session& s) { return std::string(sdk::text_view(s.c.id, s.c.id_size)); };
  if (id(session) != id(*earlier)) {
    trial.skip("'" + id(*earlier) + "' is no earlier version of '" + id(session) + "'");
  }
  if (session.c.numerics_version != earlier->c.numerics_version) {
    trial.note("numerics_version was " + std::to_string(earlier->c.numerics_version) + " and is " +
               std::to_string(session.c.numerics_version) + ": results may differ");
    return;
  }
  Random random(trial.options.seed);
  bool any = false;
  for (const Subject& subject : subjects(session)) {
    const Asked asked{&subject.op, subject.dtype, subject.passes};
    if (!ask(*earlier, asked, subject.device).yes()) continue;
    OpenDevice device(session, subject.device), earlier_device(*earlier, subject.device);
    Kernel kernel(session, device.get(), subject.device, asked);
    Kernel earlier_kernel(*earlier, earlier_device.get(), subject.device, asked);
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (!prepare(session, kernel, problem) || !prepare(*earlier, earlier_kernel, problem)) continue;
    for (const std::uint32_t pass : passes_of(subject)) {
      trial.step(subject.name() + ", " + pass_name(pass) + ": this version and the earlier one");
      Evaluation now = problem.of(pass), then = problem.of(pass);
      if (!run_well(session, kernel, now) || !run_well(*earlier, earlier_kernel, then)) continue;
      any = true;
      trial.expect(same_bits(now, then), "P-52",
                   "other results, and the same numerics_version " + std::to_string(session.c.numerics_version),
                   "another numerics_version than before");
    }
  }
  if (!any) trial.skip("the two versions have no kernel in common");
}

}  // namespace

void add_query_checks(std::vector<Check>& list) {
  list.push_back({{"queries.pure", "P-44", "the same question gets the same answer"}, "", check_pure});
  list.push_back({{"queries.answers", "P-45", "answers fit together; P-46"}, "", check_consistent});
  list.push_back({{"queries.unknown", "P-47", "what it does not know gets a no"}, "P-47", check_unknown});
  list.push_back({{"queries.kept", "P-48", "a yes is kept"}, "", check_kept});
  list.push_back({{"queries.ops", "P-49", "what is listed is offered, and nothing else"}, "", check_ops});
  list.push_back({{"queries.names", "P-50", "ops of its own have a reverse-DNS name"}, "", check_names});
  list.push_back({{"queries.deterministic", "P-51", "what claims to be deterministic gives the same bits"},
                  "",
                  check_deterministic});
  list.push_back({{"queries.numerics_version", "P-52", "results that changed come with another numerics_version"},
                  "",
                  check_numerics_version});
  list.push_back({{"queries.thread_safe", "P-51", "what claims to be thread-safe is"}, "P-51", check_thread_safe});
}

}  // namespace fastpath::conformance
