#include <stdexcept>

extern "C" void zoo_throw();

void zoo_throw() {
#ifdef ZOO_THROWS_AN_INT
  throw 42;
#else
  throw std::runtime_error("the lion is loose");
#endif
}
