#include "children.hpp"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fastpath::probe {
namespace {

/// The entries of /proc/self/task/*/children: those that this process has to wait for.
std::vector<pid_t> listed_children() {
  std::vector<pid_t> result;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "children");
    for (pid_t pid = 0; file >> pid;) result.push_back(pid);
  }
  return result;
}

}  // namespace

std::size_t child_count() {
  const std::size_t listed = listed_children().size();
  if (listed > 0) return listed;
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ? 1 : 0;  // fails where there are none
}

void end_children() {
  // A child that ends hands its own children to this process, which is their subreaper.
  constexpr int kRounds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<pid_t> left = listed_children();
    if (left.empty()) return;
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    for (const pid_t pid : left) {
      while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }
}

std::uint64_t peak_memory() {
  // Not getrusage(): its peak includes what the process that started this one had.
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    std::uint64_t kibibytes = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %lu kB", &kibibytes) == 1) return kibibytes << 10;
  }
  return 0;
}

}  // namespace fastpath::probe
