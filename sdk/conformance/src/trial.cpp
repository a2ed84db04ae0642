#include "trial.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>

namespace fastpath::conformance {

std::string encode_line(char kind, const std::vector<std::string>& fields) {
  std::string line(1, kind);
  for (const std::string& field : fields) {
    line += '\t';
    for (const char c : field) {
      if (c == '\\' || c == '\n' || c == '\t') {
        line += '\\';
        line += c == '\n' ? 'n' : c == '\t' ? 't' : '\\';
      } else {
        line += c;
      }
    }
  }
  return line + '\n';
}

bool decode_line(const std::string& line, char& kind, std::vector<std::string>& fields) {
  if (line.empty()) return false;
  kind = line[0];
  fields.clear();
  for (std::size_t i = 1; i < line.size(); ++i) {
    if (line[i] == '\t') {
      fields.emplace_back();
      continue;
    }
    if (fields.empty()) return false;
    if (line[i] == '\\' && i + 1 < line.size()) {
      ++i;
      fields.back() += line[i] == 'n' ? '\n' : line[i] == 't' ? '\t' : line[i];
    } else {
      fields.back() += line[i];
    }
  }
  return true;
}

namespace {

/// The same seed for a check whichever others run, and another one for each check.
std::uint64_t seed_of(const Options& options, const std::string& name) {
  std::uint64_t state = options.seed * 0x9E3779B97F4A7C15ull + 14695981039346656037ull;
  for (const char c : name) state = (state ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return state;
}

}  // namespace

Trial::Trial(const Options& options_, CheckInfo info_, int output)
    : options(options_), info(std::move(info_)), random(seed_of(options_, info.name)), output_(output) {}

void Trial::send(char kind, const std::vector<std::string>& fields) {
  if (output_ < 0) return;
  const std::string line = encode_line(kind, fields);
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(output_, line.data() + done, line.size() - done);
    if (n <= 0) return;  // the parent is gone; there is no one left to tell
    done += static_cast<std::size_t>(n);
  }
}

void Trial::step(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (text == step_) return;
  step_ = text;
  send('S', {text});
}

void Trial::fail(const std::string& obligation, const std::string& found, const std::string& expected) {
  constexpr int kMost = 12;
  const std::lock_guard lock(mutex_);
  // One fault shows in many calls; its first ones are enough.
  const std::string key = obligation + '\n' + step_ + '\n' + found;
  if (n_failures_ >= kMost || !seen_.insert(key).second) return;
  ++n_failures_;
  send('F', {obligation, step_, found, expected});
}

void Trial::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  send('N', {text});
}

void Trial::skip(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    send('K', {reason});
  }
  throw Stop{};
}

std::vector<Check>& check_list() {
  static std::vector<Check> list = [] {
    std::vector<Check> checks;
    add_file_checks(checks);
    add_version_checks(checks);
    add_call_checks(checks);
    add_process_checks(checks);
    add_device_checks(checks);
    add_query_checks(checks);
    add_kernel_checks(checks);
    add_derivative_checks(checks);
    return checks;
  }();
  return list;
}

std::vector<CheckInfo> all_checks() {
  std::vector<CheckInfo> result;
  for (const Check& check : check_list()) result.push_back(check.info);
  return result;
}

void add_check(CheckInfo info, std::function<void(const Options&, Report&)> run) {
  check_list().push_back({std::move(info), "", [run = std::move(run)](Trial& trial) {
                            Report report;
                            report.step = [&](const std::string& text) { trial.step(text); };
                            report.fail = [&](const std::string& obligation, const std::string& found,
                                              const std::string& expected) { trial.fail(obligation, found, expected); };
                            report.note = [&](const std::string& text) { trial.note(text); };
                            report.skip = [&](const std::string& text) {
                              try {
                                trial.skip(text);
                              } catch (const Stop&) {  // the check returns by itself
                              }
                            };
                            run(trial.options, report);
                          }});
}

int run_worker(const Options& options, const std::string& name) {
  const auto& list = check_list();
  const auto check = std::find_if(list.begin(), list.end(), [&](const Check& c) { return c.info.name == name; });
  if (check == list.end()) return 2;
  // Never destroyed: a plugin may call its host until the process ends, and that is looked at too.
  static Trial* kept = nullptr;
  kept = new Trial(options, check->info, kReportDescriptor);
  Trial& trial = *kept;
  try {
    check->run(trial);
  } catch (const Stop&) {
  } catch (const std::exception& error) {
    trial.fail("kit", std::string("the kit itself failed: ") + error.what(), "no fault of the kit: please report it");
  }
  const std::string done = encode_line('D', {});
  return ::write(kReportDescriptor, done.data(), done.size()) == static_cast<ssize_t>(done.size()) ? 0 : 2;
}

}  // namespace fastpath::conformance
