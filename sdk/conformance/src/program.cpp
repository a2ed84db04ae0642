#include "fastpath/conformance/conformance.hpp"

int main(int argc, char** argv) { return fastpath::conformance::main(argc, argv); }
