#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cfenv>
#include <chrono>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "problem.hpp"

/// What the process is like after the plugin has worked in it.
namespace fastpath::conformance {
namespace {

/// @param look  Called between one kernel's runs and its end.
void work(Session& session, const std::function<void(const Subject&, fp_device*)>& look = {}, int threads = 1) {
  Random random(session.trial.options.seed);
  for (const Subject& subject : subjects(session)) {
    session.trial.step(subject.name());
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (!prepare(session, kernel, problem)) continue;
    for (const std::uint32_t pass : passes_of(subject)) {
      Evaluation evaluation = problem.of(pass);
      RunOptions options;
      options.threads = threads;
      run_well(session, kernel, evaluation, options);
    }
    if (look) look(subject, device.get());
  }
}

extern "C" void conformance_handler(int) {}

void check_state(Trial& trial) {
  // Not the state that every process starts with, so that "putting it back" to that one shows.
  std::setlocale(LC_ALL, "C.UTF-8");
  std::signal(SIGUSR2, conformance_handler);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  const ProcessState before = ProcessState::take();
  Session session(trial);  // it compares the state around every call
  work(session);
#if defined(__SSE__)
  trial.step("a thread that rounds upward and flushes denormal numbers to zero");
  std::fesetround(FE_UPWARD);
  constexpr unsigned kFlushToZero = 0x8040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero);
  Random random(trial.options.seed);
  for (const Subject& subject : subjects(session)) {
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (!prepare(session, kernel, problem)) continue;
    Evaluation evaluation = problem.forward();
    if ((subject.passes & FP_PASS_FORWARD) != 0) kernel.run(evaluation);
  }
  before.restore();
#endif
  const ProcessState after = ProcessState::take();
  for (const std::string& difference : after.changes_since(before)) {
    trial.fail("P-31", "all of it " + difference, "that it is as before");
  }
}

void check_output(Trial& trial) {
  Session session(trial);  // whoever started this process reads what is printed
  work(session);
  fp_device* device = nullptr;
  session.try_open(nullptr, &device);
  OpCase unknown = small_case(known_ops()[0]);
  unknown.op = "org.example.unknown";
  for (const fp_device_info& info : session.devices()) ask(session, {&unknown, sdk::kFloat64, FP_PASS_FORWARD}, info);
}

void check_threads_of_a_call(Trial& trial) {
  Session session(trial);
  session.watch = false;
  int before = 0;
  Random random(trial.options.seed);
  for (const Subject& subject : subjects(session)) {
    if (subject.device.type != FP_DEVICE_CPU) {
      trial.note("not looked at on devices other than the CPU, whose drivers have threads of their own");
      continue;
    }
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 300, random);
    if (!prepare(session, kernel, problem)) continue;
    before = thread_count();
    for (const std::uint32_t pass : passes_of(subject)) {
      trial.step(subject.name() + ", " + pass_name(pass) + " with one thread");
      Evaluation evaluation = problem.of(pass);
      if (!run_well(session, kernel, evaluation)) continue;
      const int now = thread_count();
      trial.expect(now <= before, "P-33",
                   "a call with one thread left " + std::to_string(now - before) + " more threads",
                   "no thread but the caller's");
    }
  }
}

void check_children(Trial& trial) {
  Session session(trial);
  work(session);
  int status = 0;
  const pid_t child = ::waitpid(-1, &status, WNOHANG);
  trial.expect(child < 0 && errno == ECHILD, "P-34", "the process has children", "that it starts no process");
}

/// Forks; false if the child did not end by itself in time.
bool child_ends(Trial& trial, const char* what, void (*in_child)()) {
  trial.step(what);
  const pid_t child = ::fork();
  if (child < 0) trial.skip("cannot fork");
  if (child == 0) {
    in_child();
    ::_exit(99);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      trial.fail("P-35", "the child did not end within 10 s", "a child that can end");
      return false;
    }
    std::this_thread::yield();
  }
  trial.expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "P-35",
               WIFSIGNALED(status) ? "the child ended by signal " + std::to_string(WTERMSIG(status))
                                   : "the child ended with status " + std::to_string(WEXITSTATUS(status)),
               "status 0");
  return true;
}

void check_fork(Trial& trial) {
  Session session(trial);
  bool once = false;
  work(
      session,
      [&](const Subject& subject, fp_device*) {
        if (once) return;
        once = true;
        const std::string with = "a child forked with " + subject.name() + " on an open device";
        child_ends(trial, (with + ", which exits").c_str(), [] { std::exit(0); });
        child_ends(trial, (with + ", which starts another program").c_str(), [] {
          ::execl("/bin/true", "true", static_cast<char*>(nullptr));
          ::execl("/usr/bin/true", "true", static_cast<char*>(nullptr));
        });
        trial.step("the parent goes on");
      },
      2);
  work(session);
}

}  // namespace

void add_process_checks(std::vector<Check>& list) {
  list.push_back({{"process.state", "P-31", "locale, floating-point mode, signals and directory stay as they are"},
                  "",
                  check_state});
  list.push_back({{"process.output", "P-32", "nothing is printed"}, "", check_output});
  list.push_back({{"process.threads", "P-33", "a call with one thread uses one thread"}, "", check_threads_of_a_call});
  list.push_back({{"process.children", "P-34", "no process is started"}, "", check_children});
  list.push_back({{"process.fork", "P-35", "a child forked beside an open device can end"}, "P-35", check_fork});
}

}  // namespace fastpath::conformance
