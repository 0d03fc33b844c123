#include "cli/random.h"

#include <cmath>

namespace baton::cli {

double Random::Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

int Random::Between(int low, int high) {
  return low + static_cast<int>(Next() % static_cast<uint64_t>(high - low + 1));
}

double Random::Exponential(double rate) { return -std::log1p(-Uniform()) / rate; }

// G. Marsaglia and T. Bray, "A Convenient Method for Generating Normal Variables", 1964.
double Random::Normal() {
  double x, square;
  do {
    x = 2 * Uniform() - 1;
    const double y = 2 * Uniform() - 1;
    square = x * x + y * y;
  } while (square >= 1 || square == 0);
  return x * std::sqrt(-2 * std::log(square) / square);
}

// G. Marsaglia and W. Tsang, "A Simple Method for Generating Gamma Variables", 2000.
double Random::Gamma(double shape) {
  if (shape < 1) {
    const double uniform = 1 - Uniform();  // not 0
    return Gamma(shape + 1) * std::pow(uniform, 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = Normal();
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

std::vector<int32_t> Random::Tokens(int count, int vocab_size) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = Between(0, vocab_size - 1);
  return ids;
}

}  // namespace baton::cli
