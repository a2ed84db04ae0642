#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "trial.hpp"

extern char** environ;

namespace fastpath::conformance {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostOutput = 16384;
constexpr std::size_t kMostReport = 4u << 20;

std::string signal_name(int signal) {
  const char* name = ::sigdescr_np(signal);
  return "signal " + std::to_string(signal) + (name == nullptr ? "" : std::string(" (") + name + ")");
}

/// Two ends of a pipe, each closed once.
struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    read = ends[0];
    write = ends[1];
    ::fcntl(read, F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    close_read();
    close_write();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_read() { close_end(read); }
  void close_write() { close_end(write); }
  static void close_end(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
};

/// What came out of one process.
struct Ended {
  std::string report, output;
  bool timed_out = false;
  int status = 0;
};

/// Reads what there is now, and says that there was something; false at the end.
bool drain(int descriptor, std::string& into, std::size_t most, bool& any) {
  std::array<char, 65536> buffer{};
  for (;;) {
    const ssize_t n = ::read(descriptor, buffer.data(), buffer.size());
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    any = true;
    const std::size_t room = into.size() < most ? most - into.size() : 0;
    into.append(buffer.data(), std::min(room, static_cast<std::size_t>(n)));
  }
}

pid_t spawn(std::vector<std::string> command, Pipe& report, Pipe& output) {
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, output.write, 1);
  ::posix_spawn_file_actions_adddup2(&files, output.write, 2);
  ::posix_spawn_file_actions_adddup2(&files, report.write, kReportDescriptor);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  // A group of its own, so that what it starts goes with it; signals as a fresh program has them.
  ::posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t all;
  sigfillset(&all);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, arguments[0], &files, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) throw std::runtime_error(command[0] + ": " + std::strerror(error));
  return child;
}

/// @param timeout  Seconds in which it must report something, or end.
Ended run_process(const std::vector<std::string>& command, double timeout) {
  Pipe report, output;
  // Descriptor 3 might be one of the pipes' own, and would then be closed on exec.
  while (report.write == kReportDescriptor || output.write == kReportDescriptor) {
    int& end = report.write == kReportDescriptor ? report.write : output.write;
    const int moved = ::fcntl(end, F_DUPFD_CLOEXEC, kReportDescriptor + 1);
    if (moved < 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    ::close(end);
    end = moved;
  }
  const pid_t child = spawn(command, report, output);
  report.close_write();
  output.close_write();
  Ended result;
  const auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
  auto deadline = Clock::now() + limit;
  bool report_open = true, output_open = true;
  for (;;) {
    // Its descriptors may live on in what it started, so its end is asked for too.
    const pid_t ended = ::waitpid(child, &result.status, WNOHANG);
    bool reported = false, printed = false;
    if (report_open) report_open = drain(report.read, result.report, kMostReport, reported);
    if (output_open) output_open = drain(output.read, result.output, kMostOutput, printed);
    if (ended == child) break;
    // A check of many steps may take long, as where a device's compiler is slow; what hangs takes no further step.
    if (reported) deadline = Clock::now() + limit;
    if (Clock::now() > deadline) {
      result.timed_out = true;
      ::kill(-child, SIGKILL);
      ::waitpid(child, &result.status, 0);
      drain(report.read, result.report, kMostReport, reported);
      break;
    }
    std::array<pollfd, 2> ends{pollfd{report_open ? report.read : -1, POLLIN, 0},
                               pollfd{output_open ? output.read : -1, POLLIN, 0}};
    ::poll(ends.data(), ends.size(), report_open ? 50 : 2);
  }
  ::kill(-child, SIGKILL);  // what it left running
  return result;
}

/// Bytes that may stand in one line of a message.
std::string shown(const std::string& text) {
  constexpr std::size_t kMost = 1500;
  std::string result;
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      result += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += '?';
    } else {
      result += c;
    }
  }
  return result + (text.size() > kMost ? "..." : "");
}

Result judge(const Check& check, const Ended& ended, double timeout) {
  Result result{check.info.name, check.info.obligation, check.info.statement};
  bool done = false;
  std::string step;
  const auto fail = [&](const std::string& obligation, std::string found, std::string expected) {
    result.failures.push_back({obligation, step, std::move(found), std::move(expected)});
  };
  std::size_t at = 0;
  while (at < ended.report.size()) {
    const std::size_t end = std::min(ended.report.find('\n', at), ended.report.size());
    char kind = 0;
    std::vector<std::string> fields;
    if (decode_line(ended.report.substr(at, end - at), kind, fields)) {
      if (kind == 'S' && fields.size() == 1) step = fields[0];
      if (kind == 'F' && fields.size() == 4) result.failures.push_back({fields[0], fields[1], fields[2], fields[3]});
      if (kind == 'N' && fields.size() == 1) result.note += (result.note.empty() ? "" : "; ") + fields[0];
      if (kind == 'K' && fields.size() == 1) {
        result.verdict = Verdict::skipped;
        result.note = fields[0];
      }
      if (kind == 'D') done = true;
    }
    at = end + 1;
  }
  const std::string words = ended.output.empty() ? "" : "; it printed: " + shown(ended.output);
  const auto blamed = [&](const char* otherwise) {
    return check.if_it_crashes.empty() ? std::string(otherwise) : check.if_it_crashes;
  };
  if (ended.timed_out) {
    char text[64];
    std::snprintf(text, sizeof text, "did not return within %g s", timeout);
    fail(blamed("P-21"), text + words, "that every call returns");
  } else if (WIFSIGNALED(ended.status)) {
    const std::string which = signal_name(WTERMSIG(ended.status));
    if (done) {
      fail("P-07", "the process ended by " + which + " after its last call" + words, "that a process ends normally");
    } else {
      fail(blamed("P-20"), "the process ended by " + which + words, "that no call ends the process");
    }
  } else if (!done) {
    fail(blamed("P-20"), "the process exited with status " + std::to_string(WEXITSTATUS(ended.status)) + words,
         "that no call ends the process");
  } else if (WEXITSTATUS(ended.status) != 0) {
    fail("P-07",
         "the process exited with status " + std::to_string(WEXITSTATUS(ended.status)) + " after its last call" + words,
         "that nothing happens when a process ends");
  } else if (!ended.output.empty()) {
    fail("P-32", "it printed: " + shown(ended.output), "that messages go to the log of the host");
  }
  if (!result.failures.empty()) result.verdict = Verdict::failed;
  return result;
}

/// One check in a process of its own.
Result run_check(const CheckInfo& info, const Options& options, const WorkerCommand& worker, bool& timed_out) {
  const auto& list = check_list();
  const auto check = std::find_if(list.begin(), list.end(), [&](const Check& c) { return c.info.name == info.name; });
  std::vector<std::string> command = worker;
  command.push_back(info.name);
  const auto start = Clock::now();
  const Ended ended = run_process(command, options.timeout);
  timed_out = ended.timed_out;
  Result result = judge(*check, ended, options.timeout);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

}  // namespace

std::vector<CheckInfo> chosen_checks(const Options& options) {
  std::vector<CheckInfo> result;
  for (const CheckInfo& info : all_checks()) {
    const bool chosen =
        options.only.empty() || std::any_of(options.only.begin(), options.only.end(), [&](const std::string& glob) {
          return ::fnmatch(glob.c_str(), info.name.c_str(), 0) == 0 || glob == info.obligation;
        });
    if (chosen) result.push_back(info);
  }
  return result;
}

std::vector<Result> run_all(const Options& options, const WorkerCommand& worker,
                            const std::function<void(const Result&)>& on_result) {
  const std::vector<CheckInfo> chosen = chosen_checks(options);
  // What hangs mostly hangs everywhere, and each time has to be waited for.
  constexpr int kMostTimeouts = 2;
  std::vector<Result> results(chosen.size());
  std::mutex mutex;  // of everything below, and of on_result
  std::size_t next = 0;
  int timeouts = 0;
  std::exception_ptr failure;
  const auto take_turns = [&] {
    std::unique_lock lock(mutex);
    while (next < chosen.size() && failure == nullptr) {
      const std::size_t at = next++;
      const CheckInfo& info = chosen[at];
      try {
        if (timeouts >= kMostTimeouts) {
          results[at] = {
              info.name, info.obligation, info.statement, Verdict::skipped, {}, "two checks before it did not return"};
        } else {
          lock.unlock();
          bool timed_out = false;
          Result result = run_check(info, options, worker, timed_out);
          lock.lock();
          timeouts += timed_out ? 1 : 0;
          results[at] = std::move(result);
        }
        if (on_result && failure == nullptr) on_result(results[at]);
      } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        if (failure == nullptr) failure = std::current_exception();
      }
    }
  };
  {
    const std::size_t jobs = std::min<std::size_t>(std::max(1, options.jobs), chosen.size());
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < jobs; ++i) others.emplace_back(take_turns);
    take_turns();
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  return results;
}

}  // namespace fastpath::conformance
