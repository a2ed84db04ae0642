#include <stdbool.h>
#include <stdint.h>
