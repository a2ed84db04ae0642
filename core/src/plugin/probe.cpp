#include "probe.hpp"

// Boost.Process knows of vfork() only where an old standard is asked for; Linux always has it.
#define BOOST_POSIX_HAS_VFORK 1

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/process/args.hpp>
#include <boost/process/child.hpp>
#include <boost/process/error.hpp>
#include <boost/process/exe.hpp>
#include <boost/process/group.hpp>
#include <boost/process/posix.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "abi.hpp"
#include "fastpath/version.hpp"
#include "io/descriptor.hpp"

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;
namespace bp = boost::process;
using Clock = std::chrono::steady_clock;
using io::Descriptor;

// How often a process is looked at while it says nothing: bounds how far it gets beyond its memory, and how long a
// process that was left behind can hide the end of the one that started it.
constexpr std::chrono::milliseconds kLook{20};
constexpr std::chrono::milliseconds kLookAtSilent{1};
constexpr std::chrono::seconds kLastWait{5};  // for the end of a process that was killed
constexpr std::size_t kMaxQuoted = 200;       // bytes of output that a reason quotes
// Descriptors in the helper process.
constexpr int kInput = 0, kOutput = 1, kErrors = 2, kAnswer = 3;

/// A copy clear of the numbers that are given to the helper process, in case the host has closed its own 0 to 3.
Descriptor moved_up(const Descriptor& descriptor) {
  constexpr int kFirst = 10;
  const int higher = ::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, kFirst);
  if (higher < 0) throw std::system_error(errno, std::generic_category(), "a descriptor for the helper process");
  return Descriptor(higher);
}

struct Pipe {
  Descriptor source, sink;
  /// Closed on exec from the start: another thread may start a program at any time. @throws std::system_error.
  static Pipe open() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw std::system_error(errno, std::generic_category(), "a pipe to the helper process");
    }
    const Descriptor source(ends[0]), sink(ends[1]);
    return {moved_up(source), moved_up(sink)};
  }
};

/// Blocks every signal in this thread: until it runs its own program the child shares this memory, and no handler of
/// the host may run in it.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_{};
};

std::string random_token() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}", source(), source());
}

std::string during(const std::vector<Stage>& begun, bool complete) {
  if (complete) return "as its process ended";
  if (begun.empty()) return "before it was loaded";
  switch (begun.back()) {
    case Stage::load:
      return "while it was loaded";
    case Stage::negotiate:
      return "in its query function";
    case Stage::kernels:
      return "while it listed its kernels";
    case Stage::devices:
      return "while it listed its devices";
    case Stage::probe:  // the last thing that the helper does with it
      return "in its shutdown";
    default:
      return "while it was tried";
  }
}

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{} s", static_cast<double>(time.count()) / 1000);
}

std::string mebibytes(std::uint64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

std::string signal_text(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

/// Processes below one, as far as the system tells; one that moved to a group of its own is not ended with the group.
void collect_descendants(pid_t pid, std::vector<pid_t>& result) {
  constexpr std::size_t kMost = 10000;
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", pid));
  for (pid_t child = 0; result.size() < kMost && file >> child;) {
    result.push_back(child);
    collect_descendants(child, result);
  }
}

/// One helper process, from its start to its verdict.
class Trial {
 public:
  /// Starts it. @throws std::system_error if it cannot be started.
  Trial(const fs::path& program, const Candidate& candidate, const ProbeLimits& limits);
  ~Trial() { end(); }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool finished() const noexcept { return finished_; }
  /// It can write nothing any more, so its end is all that is waited for.
  bool silent() const noexcept { return answer_source_.get() < 0 && output_source_.get() < 0; }
  /// What to wait for.
  void add_to(std::vector<pollfd>& descriptors) const;
  /// Takes what came, and ends the process if it went beyond a limit or has said everything.
  void advance();
  ProbeRecord verdict() const;

 private:
  enum class Breach { none, time, memory, output, answer };
  void drain(Descriptor& from, std::string& into, std::size_t keep, std::uint64_t& count);
  void breach(Breach what) {
    breach_ = what;
    end();
  }
  void end();
  bool has_ended();
  std::uint64_t resident_bytes() const;
  std::string quoted() const;

  const ProbeLimits limits_;
  const std::string token_ = random_token();
  const Clock::time_point deadline_;
  Descriptor answer_source_, output_source_;
  std::string answer_, output_;
  std::uint64_t answer_bytes_ = 0, output_bytes_ = 0;
  pid_t pid_ = -1;
  bool gone_ = false;  // somebody else waited for it
  bool finished_ = false;
  int status_ = 0;
  bool has_status_ = false;
  Breach breach_ = Breach::none;
};

Trial::Trial(const fs::path& program, const Candidate& candidate, const ProbeLimits& limits)
    : limits_(limits), deadline_(Clock::now() + limits.time) {
  Pipe answer = Pipe::open();
  Pipe output = Pipe::open();
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null.get() < 0) throw std::system_error(errno, std::generic_category(), "/dev/null");
  const Descriptor input = moved_up(null);
  for (const int descriptor : {answer.source.get(), output.source.get()}) {
    ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  }
  const std::vector<std::string> arguments{"--answer-fd",
                                           std::to_string(kAnswer),
                                           "--token",
                                           token_,
                                           "--identity",
                                           write_identity(candidate.identity),
                                           candidate.resolved.string()};
  bp::group group;
  std::error_code error;
  {
    const HeldSignals held;
    bp::child child(bp::exe = program.string(), bp::args = arguments, bp::posix::fd.bind(kInput, input.get()),
                    bp::posix::fd.bind(kOutput, output.sink.get()), bp::posix::fd.bind(kErrors, output.sink.get()),
                    bp::posix::fd.bind(kAnswer, answer.sink.get()), group, bp::posix::use_vfork, error);
    // Waited for here, with a deadline and without its SIGCHLD.
    if (!error) {
      pid_ = child.id();
      child.detach();
    }
  }
  group.detach();
  if (error) throw std::system_error(error, "the helper process");
  answer_source_ = std::move(answer.source);
  output_source_ = std::move(output.source);
}

void Trial::add_to(std::vector<pollfd>& descriptors) const {
  for (const Descriptor* descriptor : {&answer_source_, &output_source_}) {
    if (descriptor->get() >= 0) descriptors.push_back({descriptor->get(), POLLIN, 0});
  }
}

void Trial::drain(Descriptor& from, std::string& into, std::size_t keep, std::uint64_t& count) {
  std::array<char, 1u << 14> buffer;
  // A bounded number of pieces, so that one process cannot keep the others waiting.
  for (int piece = 0; piece < 16 && from.get() >= 0; ++piece) {
    const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      from.close();
      return;
    }
    count += static_cast<std::uint64_t>(got);
    const std::size_t room = keep - std::min(keep, into.size());
    into.append(buffer.data(), std::min<std::size_t>(room, static_cast<std::size_t>(got)));
  }
}

void Trial::advance() {
  if (finished_) return;
  // In this order: what it wrote is in the pipes once it was seen to have ended. What it left behind may hold them
  // open.
  const bool ended = has_ended();
  drain(answer_source_, answer_, kMaxAnswer + 1, answer_bytes_);
  drain(output_source_, output_, kMaxQuoted, output_bytes_);
  if (output_bytes_ > limits_.output) return breach(Breach::output);
  if (answer_bytes_ > kMaxAnswer) return breach(Breach::answer);
  if (ended) return end();
  if (Clock::now() >= deadline_) return breach(Breach::time);
  if (resident_bytes() > limits_.memory) return breach(Breach::memory);
}

bool Trial::has_ended() {
  siginfo_t info{};
  int result = 0;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  } while (result != 0 && errno == EINTR);
  // The host may ignore SIGCHLD, or wait for every child itself: then how it ended is not known.
  if (result != 0) gone_ = true;
  return gone_ || info.si_pid == pid_;
}

void Trial::end() {
  if (finished_ || pid_ < 0) return;
  finished_ = true;
  // As long as nobody has waited for it, its number belongs to no other process or group.
  if (!gone_ && !has_ended()) {
    std::vector<pid_t> others;
    collect_descendants(pid_, others);
    ::kill(pid_, SIGKILL);
    for (const pid_t other : others) ::kill(other, SIGKILL);
  }
  if (!gone_) {
    ::kill(-pid_, SIGKILL);
    // A process that a driver holds in the kernel may not end at all: it is left to the system then.
    const Clock::time_point patience = Clock::now() + kLastWait;
    while (!gone_ && !has_ended() && Clock::now() < patience)
      ::poll(nullptr, 0, static_cast<int>(kLookAtSilent.count()));
    has_status_ = !gone_ && ::waitpid(pid_, &status_, WNOHANG) == pid_;
  }
  answer_source_.close();
  output_source_.close();
}

std::uint64_t Trial::resident_bytes() const {
  std::ifstream file(fmt::format("/proc/{}/statm", pid_));
  std::uint64_t total = 0, resident = 0;
  if (!(file >> total >> resident)) return 0;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string Trial::quoted() const {
  if (output_.empty()) return {};
  return fmt::format("'{}{}'", clean_text(output_, kMaxQuoted), output_bytes_ > output_.size() ? "..." : "");
}

ProbeRecord Trial::verdict() const {
  ProbeRecord record;
  const auto ended = [&](ReasonCode code, std::string text) {
    record.state = code == ReasonCode::probe_unavailable ? PluginState::rejected : PluginState::quarantined;
    record.stage = Stage::probe;
    record.reason = {code, std::move(text)};
    return record;
  };
  const std::string output = quoted().empty() ? "" : fmt::format(", after it printed {}", quoted());
  const int status = has_status_ && WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  // This much comes before anything of the plugin runs.
  if (!answer_.starts_with(write_answer_start(build_info().version, token_))) {
    if (breach_ == Breach::none || breach_ == Breach::answer) {
      return ended(ReasonCode::probe_unavailable,
                   fmt::format("the helper program did not start as one of version {} does{}{}", build_info().version,
                               status >= 0 ? fmt::format("; its status was {}", status) : "", output));
    }
  }
  if (breach_ == Breach::answer) {
    return ended(ReasonCode::probe_garbage, fmt::format("the answer has more than {} bytes", kMaxAnswer));
  }
  std::string why;
  const std::optional<ProbeAnswer> answer = read_answer(answer_, why);
  const std::string where = during(answer ? answer->begun : std::vector<Stage>(), answer && answer->complete);
  switch (breach_) {
    case Breach::time:
      return ended(ReasonCode::probe_timeout,
                   fmt::format("it hangs {}: ended after {}{}", where, seconds(limits_.time), output));
    case Breach::memory:
      return ended(ReasonCode::probe_memory,
                   fmt::format("it took more than {} of memory {}", mebibytes(limits_.memory), where));
    case Breach::output:
      return ended(ReasonCode::probe_output, fmt::format("it printed more than {} {}: {}",
                                                         fmt::format("{} KiB", limits_.output >> 10), where, quoted()));
    case Breach::answer:
    case Breach::none:
      break;
  }
  if (!answer) return ended(ReasonCode::probe_garbage, fmt::format("the answer cannot be read: {}", why));
  if (has_status_ && WIFSIGNALED(status_)) {
    return ended(ReasonCode::probe_crashed,
                 fmt::format("it was killed by {} {}{}", signal_text(WTERMSIG(status_)), where, output));
  }
  if (!answer->complete) {
    if (status == kAnswerLost) {
      return ended(ReasonCode::probe_side_effects,
                   fmt::format("it closed or replaced descriptors that are not its own {}", where));
    }
    if (output_.find("Sanitizer") != std::string::npos) {
      return ended(ReasonCode::probe_crashed, fmt::format("a sanitizer ended it {}{}", where, output));
    }
    return ended(ReasonCode::probe_exited,
                 fmt::format("it ended its process{} {}{}", status >= 0 ? fmt::format(" with status {}", status) : "",
                             where, output));
  }
  if (answer->peak_bytes > limits_.memory) {
    return ended(ReasonCode::probe_memory, fmt::format("it took {} of memory, at most {} are allowed",
                                                       mebibytes(answer->peak_bytes), mebibytes(limits_.memory)));
  }
  if (!answer->effects.empty())
    return ended(ReasonCode::probe_side_effects, fmt::format("it {}", fmt::join(answer->effects, "; it ")));
  record = *answer->record;
  if (output_bytes_ > 0) record.notes.push_back(fmt::format("printed {} bytes: {}", output_bytes_, quoted()));
  return record;
}

/// The directory of the library, or program, that contains this function.
fs::path own_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&find_probe_program), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? fs::path() : file.parent_path();
}

}  // namespace

fs::path find_probe_program(const fs::path& given, std::string& why) {
  std::vector<fs::path> places;
  if (!given.empty()) {
    places.push_back(given);
  } else {
    std::error_code error;
    if (const fs::path own = own_directory(); !own.empty()) {
      // Beside a program that contains the library, where the package puts it, and in a build tree.
      for (const fs::path from_here : {"", FASTPATH_BIN_FROM_LIB, "../bin"}) {
        places.push_back((own / from_here / "fastpath-probe").lexically_normal());
      }
    }
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    if (!error) places.push_back(program.parent_path() / "fastpath-probe");
  }
  for (const fs::path& place : places) {
    if (place.is_absolute() && ::access(place.c_str(), X_OK) == 0) return place;
  }
  std::vector<std::string> names;
  for (const fs::path& place : places) {
    if (std::find(names.begin(), names.end(), place.string()) == names.end()) names.push_back(place.string());
  }
  why = fmt::format("no helper program {}", fmt::join(names, " or "));
  return {};
}

std::vector<ProbeRecord> probe(const fs::path& program, std::span<const Candidate* const> candidates,
                               const ProbeLimits& limits) {
  std::vector<ProbeRecord> records(candidates.size());
  // More than there are processors: one that hangs keeps none of them busy, and a few that do must not keep the others
  // from their turn.
  const std::size_t most = std::clamp<std::size_t>(2 * std::thread::hardware_concurrency(), 8, 16);
  struct Running {
    std::size_t index;
    std::unique_ptr<Trial> trial;
  };
  std::vector<Running> running;
  std::vector<pollfd> descriptors;
  for (std::size_t next = 0; next < candidates.size() || !running.empty();) {
    while (next < candidates.size() && running.size() < most) {
      try {
        running.push_back({next, std::make_unique<Trial>(program, *candidates[next], limits)});
      } catch (const std::system_error& error) {
        if (!running.empty()) break;  // for lack of descriptors or processes: tried again when one has ended
        records[next].reason = {ReasonCode::probe_unavailable,
                                fmt::format("the helper program {} cannot be run: {}", program.string(), error.what())};
      }
      ++next;
    }
    descriptors.clear();
    for (const Running& one : running) one.trial->add_to(descriptors);
    // Interrupted or not: every process is looked at.
    const bool silent =
        std::any_of(running.begin(), running.end(), [](const Running& one) { return one.trial->silent(); });
    ::poll(descriptors.data(), descriptors.size(), static_cast<int>((silent ? kLookAtSilent : kLook).count()));
    for (const Running& one : running) {
      one.trial->advance();
      if (one.trial->finished()) records[one.index] = one.trial->verdict();
    }
    std::erase_if(running, [](const Running& one) { return one.trial->finished(); });
  }
  return records;
}

}  // namespace fastpath::plugin
