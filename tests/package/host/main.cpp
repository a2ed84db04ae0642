#include <iostream>

#include "fastpath/tensor.hpp"

int main() {
  const fastpath::Tensor tensor = fastpath::Tensor::zeros({2, 3}, fastpath::DType::float64);
  std::cout << fastpath::to_string(tensor.shape()) << '\n';
  return fastpath::to_string(tensor.shape()) == "[2, 3]" ? 0 : 1;
}
