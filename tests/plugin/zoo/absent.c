int zoo_absent_library(void);
int zoo_absent_library(void) { return 0; }
