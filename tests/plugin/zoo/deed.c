/*
 * What a plugin must not do to the process that loads it, one deed a library: a macro ZOO_DEED_* says which. The query
 * function, a constructor, a destructor or the listing of devices calls it (odd_plugin.c).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

void zoo_deed(void);

static void say(int descriptor, const char* text, size_t size) {
  while (size > 0) {
    const ssize_t count = write(descriptor, text, size);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) {
      text += count;
      size -= (size_t)count;
    }
  }
}

#if defined(ZOO_DEED_ENDLESS_ANSWER) || defined(ZOO_DEED_GARBAGE) || defined(ZOO_DEED_FORGERY)
/* Writes to whatever is open besides the standard streams. */
static void say_everywhere(const char* text) {
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) say(descriptor, text, strlen(text));
  }
}

#endif

static char* last_piece; /* in reach, so that a leak checker of the test has nothing to say */

static void hog(size_t mebibytes, int keep) {
  const size_t piece = (size_t)1 << 20;
  for (size_t i = 0; mebibytes == 0 || i < mebibytes; ++i) {
    char* memory = malloc(piece);
    if (memory == NULL) break;
    memset(memory, (int)(i & 0x7f) + 1, piece);
    if (!keep) free(memory);
    if (keep) last_piece = memory;
  }
}

static void on_signal(int number) { (void)number; }

static void* idle(void* unused) {
  (void)unused;
  for (;;) pause();
  return NULL;
}

void zoo_deed(void) {
#if defined(ZOO_DEED_EXIT)
  exit(3);
#elif defined(ZOO_DEED_EXIT_AT_ONCE)
  _exit(0);
#elif defined(ZOO_DEED_ABORT)
  abort();
#elif defined(ZOO_DEED_CRASH)
  raise(SIGSEGV);
#elif defined(ZOO_DEED_KILL)
  raise(SIGKILL);
#elif defined(ZOO_DEED_HANG)
  for (;;) pause();
#elif defined(ZOO_DEED_STOP)
  raise(SIGSTOP);
#elif defined(ZOO_DEED_PRINT_A_LINE)
  say(STDOUT_FILENO, "hello\n", 6);
#elif defined(ZOO_DEED_PRINT_MEGABYTES)
  for (int i = 0; i < 3 << 14; ++i)
    say(STDOUT_FILENO, "a line of sixty-four characters that nobody ever asked to read.\n", 64);
#elif defined(ZOO_DEED_PRINT_FOR_EVER)
  for (;;) say(STDERR_FILENO, "again\n", 6);
#elif defined(ZOO_DEED_HOG)
  hog(1500, 1);
#elif defined(ZOO_DEED_HOG_FOR_EVER)
  hog(0, 1);
#elif defined(ZOO_DEED_LEAK)
  hog(1, 1);
#elif defined(ZOO_DEED_FORK)
  if (fork() == 0) idle(NULL);
#elif defined(ZOO_DEED_DAEMON)
  /* A grandchild in a session of its own, whose parent is gone. */
  int ready[2];
  char byte = 0;
  if (pipe(ready) != 0) return;
  if (fork() == 0) {
    if (fork() == 0) {
      setsid();
      say(ready[1], "x", 1);
      idle(NULL);
    }
    _exit(0);
  }
  if (read(ready[0], &byte, 1) != 1) return;
  close(ready[0]);
  close(ready[1]);
#elif defined(ZOO_DEED_THREAD)
  pthread_t thread;
  pthread_create(&thread, NULL, idle, NULL);
#elif defined(ZOO_DEED_LOCALE)
  if (setlocale(LC_ALL, "C.UTF-8") == NULL) setlocale(LC_ALL, "POSIX");
#elif defined(ZOO_DEED_FLUSH_TO_ZERO)
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040); /* as a library linked with -ffast-math does */
#else
  fesetround(FE_TOWARDZERO);
#endif
#elif defined(ZOO_DEED_ROUNDING)
  fesetround(FE_UPWARD);
#elif defined(ZOO_DEED_HANDLER)
  signal(SIGFPE, on_signal);
#elif defined(ZOO_DEED_BLOCK)
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
#elif defined(ZOO_DEED_DIRECTORY)
  if (chdir("/") != 0) abort();
#elif defined(ZOO_DEED_UMASK)
  umask(0);
#elif defined(ZOO_DEED_ENVIRONMENT)
  setenv("OMP_NUM_THREADS", "1", 1);
#elif defined(ZOO_DEED_CLOSE)
  for (int descriptor = 0; descriptor < 1024; ++descriptor) close(descriptor);
#elif defined(ZOO_DEED_CLOSE_OUTPUT)
  close(STDOUT_FILENO);
#elif defined(ZOO_DEED_GARBAGE)
  say_everywhere("\xde\xad\xbe\xef garbage\n\n\n");
#elif defined(ZOO_DEED_ENDLESS_ANSWER)
  static char text[1 << 16];
  for (size_t i = 0; i + 8 < sizeof text; i += 8) memcpy(text + i, "at\tload\n", 8);
  for (;;) say_everywhere(text);
#elif defined(ZOO_DEED_FORGERY)
  /* What the helper program would say of a good plugin, but for what only that program knows. */
  say_everywhere(
      "state\tusable\nstage\tkernels\nreason\tusable\t\n"
      "device\tcpu\t0\t1\t1024\t3\tvendor\tname\tarch\t\t\t\nkernel\torg.example.nothing\t1\tcpu\t3\t3\n"
      "peak\t4096\nend\t\n");
  _exit(0);
#elif defined(ZOO_DEED_MOODY)
  const char* const mood = getenv("ZOO_MOOD");
  if (mood != NULL && strcmp(mood, "bad") == 0) abort();
#else
#error "no deed"
#endif
}
