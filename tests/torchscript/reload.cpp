// reload tensors FILE: names, dtypes and shapes of what a TorchScript file holds, as JSON.
// reload evaluate INPUT [optimise]: the results of INPUT's frames, or what was said against them, as JSON. libtorch
// optimises a module at its second and third call, which takes seconds, and does so only with `optimise`.
// Nothing of fastpath is linked. INPUT has words: `module FILE` with the module of the frames that follow, `float64` if
// it is to be converted, and for each frame `frame`, then `atoms N` with N lines Z x y z, `edges E` with E lines sender
// receiver and shift, and perhaps `cell G` with 9 G numbers, `batch` with N, `head H` with H, and `direction` with 3 N:
// then derivatives of sum(forces * direction) by every parameter, and of the energy twice by the positions, follow.
#include <torch/csrc/autograd/autograd.h>
#include <torch/script.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Results = c10::Dict<c10::IValue, c10::IValue>;

struct Frame {
  std::shared_ptr<torch::jit::Module> module;
  torch::Tensor positions, numbers, edges, shifts, cell, batch, head, direction;
};

torch::Tensor numbers(std::istream& in, std::vector<int64_t> shape) {
  torch::Tensor values = torch::empty(shape, torch::kFloat64);
  for (int64_t i = 0; i < values.numel(); ++i) in >> values.data_ptr<double>()[i];
  return values;
}

std::vector<Frame> read(const char* path) {
  std::ifstream in(path);
  std::vector<Frame> frames;
  std::shared_ptr<torch::jit::Module> module;
  for (std::string word; in >> word;) {
    if (word == "module") {
      in >> word;
      module = std::make_shared<torch::jit::Module>(torch::jit::load(word));
      continue;
    }
    if (word == "float64") {
      module->to(torch::kFloat64);
      continue;
    }
    if (word == "frame") {
      frames.emplace_back();
      frames.back().module = module;
      continue;
    }
    Frame& frame = frames.back();
    int64_t n = frame.positions.defined() ? frame.positions.size(0) : 0;
    if (word == "atoms" || word == "edges" || word == "cell" || word == "head") in >> n;
    if (word == "atoms") {
      const torch::Tensor rows = numbers(in, {n, 4});
      frame.numbers = rows.select(1, 0).to(torch::kInt64);
      frame.positions = rows.narrow(1, 1, 3).clone();
    } else if (word == "edges") {
      const torch::Tensor rows = numbers(in, {n, 5});
      frame.edges = rows.narrow(1, 0, 2).t().to(torch::kInt64);
      frame.shifts = rows.narrow(1, 2, 3).clone();
    } else if (word == "cell") {
      frame.cell = numbers(in, {n, 3, 3});
    } else if (word == "batch") {
      frame.batch = numbers(in, {n}).to(torch::kInt64);
    } else if (word == "head") {
      frame.head = numbers(in, {n}).to(torch::kInt64);
    } else if (word == "direction") {
      frame.direction = numbers(in, {n, 3});
    } else {
      throw std::runtime_error("unknown word " + word);
    }
  }
  return frames;
}

c10::IValue optional(const torch::Tensor& tensor) { return tensor.defined() ? c10::IValue(tensor) : c10::IValue(); }

Results call(const Frame& frame, bool differentiable) {
  return frame.module
      ->forward({frame.positions, frame.numbers, frame.edges, frame.shifts, optional(frame.cell), optional(frame.batch),
                 optional(frame.head), true, differentiable})
      .toGenericDict();
}

torch::Tensor get(const Results& results, const char* name) { return results.at(std::string(name)).toTensor(); }

void print_numbers(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous().view({-1});
  std::printf("[");
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const double value = flat.data_ptr<double>()[i];
    std::isnan(value) ? std::printf("%sNaN", i > 0 ? "," : "") : std::printf("%s%.17g", i > 0 ? "," : "", value);
  }
  std::printf("]");
}

void print_results(const Results& results) {
  const char* separator = "{";
  for (const auto& entry : results) {
    std::printf("%s\"%s\": ", separator, entry.key().toStringRef().c_str());
    print_numbers(entry.value().toTensor());
    separator = ", ";
  }
}

/// Force losses and Hessians as a trainer makes them: by differentiating the module's forces.
void print_derivatives(Frame frame) {
  frame.positions.requires_grad_();
  const Results results = call(frame, true);
  const torch::Tensor forces = get(results, "forces");
  std::printf(", \"hessian\": [");
  for (int64_t i = 0; i < forces.numel(); ++i) {
    const auto row = torch::autograd::grad({-forces.view({-1})[i]}, {frame.positions}, {}, true);
    std::printf(i > 0 ? "," : "");
    print_numbers(row[0]);
  }
  for (auto parameter : frame.module->parameters()) parameter.mutable_grad() = torch::Tensor();
  (forces * frame.direction).sum().backward();
  std::printf("], \"gradients\": {");
  const char* separator = "";
  for (const auto& parameter : frame.module->named_parameters()) {
    const torch::Tensor grad = parameter.value.grad();
    std::printf("%s\"%s\": ", separator, parameter.name.c_str());
    print_numbers(grad.defined() ? grad : torch::zeros_like(parameter.value));
    separator = ", ";
  }
  std::printf("}");
}

void print_error(const std::exception& error) {
  std::printf("{\"error\": \"");
  for (const char* c = error.what(); *c != '\0'; ++c) {
    const bool plain = *c >= ' ' && *c != '"' && *c != '\\';
    std::printf("%c", plain ? *c : ' ');
  }
  std::printf("\"");
}

void evaluate(const char* path) {
  const char* separator = "[";
  for (const Frame& frame : read(path)) {
    std::printf("%s", separator);
    try {
      print_results(call(frame, false));
      if (frame.direction.defined()) print_derivatives(frame);
    } catch (const std::exception& error) {
      print_error(error);
    }
    std::printf("}");
    separator = ",\n";
  }
  std::printf("]\n");
}

void print_tensors(const torch::jit::Module& module) {
  const auto list = [](const auto& tensors) {
    const char* separator = "{";
    for (const auto& tensor : tensors) {
      std::printf("%s\"%s\": [\"%s\"", separator, tensor.name.c_str(), c10::toString(tensor.value.scalar_type()));
      for (const int64_t size : tensor.value.sizes()) std::printf(", %ld", static_cast<long>(size));
      std::printf("]");
      separator = ", ";
    }
    std::printf("}");
  };
  std::printf("{\"parameters\": ");
  list(module.named_parameters());
  std::printf(", \"buffers\": ");
  list(module.named_buffers());
  std::printf("}\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (std::string(argv[1]) == "tensors") {
      print_tensors(torch::jit::load(argv[2]));
    } else {
      if (argc < 4) torch::jit::getProfilingMode() = false;
      evaluate(argv[2]);
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
