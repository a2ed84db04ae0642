// fastpath-probe: loads one plugin as the library would, and says what came of it. docs/host-guide.md has the reader's
// view, docs/adr/0005-plugins-are-tried-in-a-helper-process.md the reasons.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "children.hpp"
#include "fastpath/conformance/process_state.hpp"
#include "fastpath/version.hpp"
#include "plugin/elf.hpp"
#include "plugin/loaded.hpp"
#include "plugin/mapping.hpp"
#include "plugin/probe_record.hpp"

namespace fastpath::probe {
namespace {

using conformance::ProcessState;
using plugin::Candidate;
using plugin::ProbeAnswer;
using plugin::ProbeRecord;

constexpr const char* kHelp =
    R"(fastpath-probe [--answer-fd N] [--token TEXT] [--identity TEXT] FILE: tries one plugin in a process of its own.

The library runs it for every plugin that it does not know yet; by hand it shows what the library is told. What came
of the plugin is written to the descriptor N, or to standard output, where nothing else appears: what the plugin itself
prints goes to standard error then. Exit status: 0 if it could be tried, whatever came of it; 2 for wrong usage.
)";

struct Arguments {
  int answer = -1;
  std::string token;
  std::string identity;  // empty: of any file
  std::string file;
};

/// @throws std::runtime_error with what is wrong.
Arguments parse(int argc, char** argv) {
  Arguments result;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--answer-fd" || word == "--token" || word == "--identity") {
      if (++i == argc) throw std::runtime_error(fmt::format("{} needs a value", word));
      if (word == "--token") {
        result.token = argv[i];
        // The plugin is not to find it: an answer that it writes itself must not look like this program's.
        std::memset(argv[i], 'x', result.token.size());
      } else if (word == "--identity") {
        result.identity = argv[i];
      } else {
        const auto number = plugin::read_number<std::uint64_t>(argv[i]);
        if (!number || *number > 1'000'000) throw std::runtime_error(fmt::format("{}: '{}'", word, argv[i]));
        result.answer = static_cast<int>(*number);
      }
    } else if (word.starts_with('-')) {
      throw std::runtime_error(fmt::format("unknown option '{}'", word));
    } else if (!result.file.empty()) {
      throw std::runtime_error(fmt::format("one FILE is expected, found '{}' and '{}'", result.file, word));
    } else {
      result.file = word;
    }
  }
  if (result.file.empty()) throw std::runtime_error("no FILE is given");
  return result;
}

/// The descriptor that the answer goes to: high, so that a plugin does not meet it by chance.
class Answer {
 public:
  explicit Answer(int descriptor) {
    for (const int high : {200, 20, STDERR_FILENO + 1}) {  // as far as the limit on descriptors lets it
      descriptor_ = ::fcntl(descriptor < 0 ? STDOUT_FILENO : descriptor, F_DUPFD_CLOEXEC, high);
      if (descriptor_ >= 0) break;
    }
    if (descriptor_ < 0) throw std::runtime_error(fmt::format("descriptor {}: {}", descriptor, std::strerror(errno)));
    if (descriptor < 0) {
      ::dup2(STDERR_FILENO, STDOUT_FILENO);
    } else if (descriptor > STDERR_FILENO) {
      ::close(descriptor);
    }
    // What the host left open is none of a plugin's business.
    close_between(STDERR_FILENO + 1, descriptor_ - 1);
    close_between(descriptor_ + 1, -1);
    struct stat status {};
    ::fstat(descriptor_, &status);
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }

  /// Writes all of it, or ends the process: without its answer it has no purpose.
  void write(std::string_view text) const {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || status.st_dev != device_ || status.st_ino != inode_) lost();
    while (!text.empty()) {
      const ssize_t count = ::write(descriptor_, text.data(), text.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) lost();
      text.remove_prefix(static_cast<std::size_t>(count));
    }
  }

 private:
  [[noreturn]] static void lost() { ::_exit(plugin::kAnswerLost); }
  static void close_between(int first, int last) {
#if defined(SYS_close_range)
    if (last == -1 || last >= first)
      ::syscall(SYS_close_range, static_cast<unsigned>(first), static_cast<unsigned>(last), 0);
#endif
  }
  int descriptor_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

/// A process like one that was just started from a shell, whatever the host is like, and one that dies with its host.
void settle() {
  for (int number = 1; number <= SIGRTMAX; ++number) std::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(plugin::kAnswerLost);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  // If memory runs out, this process goes rather than the host.
  if (std::FILE* file = std::fopen("/proc/self/oom_score_adj", "w")) {
    std::fputs("1000", file);
    std::fclose(file);
  }
}

/// Examines the file again: between the host's examination and this one it may have been replaced.
Candidate examine(const std::string& name, const std::string& expected) {
  Candidate candidate;
  std::error_code error;
  candidate.path = std::filesystem::absolute(name, error);
  candidate.resolved = std::filesystem::canonical(name, error);
  if (error) {
    candidate.reason = {ReasonCode::unreadable, error.message()};
    return candidate;
  }
  const plugin::OpenFile file(candidate.resolved);
  const auto identity = file.identity();
  if (!identity) {
    candidate.reason = {ReasonCode::unreadable, "the file cannot be opened"};
    return candidate;
  }
  candidate.identity = *identity;
  if (!expected.empty() && plugin::write_identity(*identity) != expected) {
    candidate.reason = {ReasonCode::changed, "the file was replaced, or written to, after it was examined"};
    return candidate;
  }
  plugin::ObjectReport report = plugin::inspect_object(plugin::FileSource(file.descriptor(), identity->size));
  candidate.metadata = std::move(report.metadata);
  candidate.reason = std::move(report.reason);
  if (candidate.reason.code == ReasonCode::usable) candidate.state = PluginState::usable;
  return candidate;
}

ProbeRecord attempt(const Candidate& candidate, const Answer& answer) {
  ProbeRecord record;
  if (candidate.state != PluginState::usable) {
    record.state = candidate.state;
    record.reason = candidate.reason;
    record.stage = Stage::load;
    return record;
  }
  plugin::LoadResult result =
      plugin::load(candidate, [&](Stage stage) { answer.write(plugin::write_answer_step(stage)); });
  record.state = result.state;
  record.reason = std::move(result.reason);
  record.stage = result.stage;
  record.devices = std::move(result.info.devices);
  record.kernels = std::move(result.info.kernels);
  if (result.plugin != nullptr) {
    answer.write(plugin::write_answer_step(Stage::probe));
    for (const plugin::Ended& ended : plugin::shut_down({result.plugin})) {
      if (!ended.text.empty()) record.notes.push_back(ended.text);
    }
  }
  return record;
}

void run(const Arguments& arguments) {
  const Answer answer(arguments.answer);
  settle();
  answer.write(plugin::write_answer_start(build_info().version, arguments.token));
  const Candidate candidate = examine(arguments.file, arguments.identity);
  // Whatever the library sets up at first use is not the plugin's doing.
  cpu_info();
  const ProcessState before = ProcessState::take();
  ProbeAnswer result;
  result.token = arguments.token;
  result.record = attempt(candidate, answer);
  result.effects = ProcessState::take().changes_since(before);
  if (const std::size_t left = child_count(); left > 0) {
    result.effects.push_back(fmt::format("started {} and left {}",
                                         left == 1 ? "a process" : fmt::format("{} processes", left),
                                         left == 1 ? "it" : "them"));
    end_children();
  }
  if (const int threads = conformance::thread_count(); threads > 1) {
    result.record->notes.push_back(
        fmt::format("runs {} of its own", threads == 2 ? "a thread" : fmt::format("{} threads", threads - 1)));
  }
  result.peak_bytes = peak_memory();
  answer.write(plugin::write_answer_end(result));
}

}  // namespace
}  // namespace fastpath::probe

int main(int argc, char** argv) {
  using namespace fastpath::probe;  // the program's own
  if (argc == 2 && (std::string_view(argv[1]) == "--help" || std::string_view(argv[1]) == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  Arguments arguments;
  try {
    arguments = parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fastpath-probe: error: %s; 'fastpath-probe --help' shows what there is\n", error.what());
    return 2;
  }
  try {
    run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fastpath-probe: error: %s\n", error.what());
    return fastpath::plugin::kProbeFailed;
  }
  return 0;  // destructors of the plugin run now, as they would at the host's end
}
