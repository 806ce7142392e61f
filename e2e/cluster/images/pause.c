/* The first process of a pod: holds its namespaces, reaps orphans, ends when told. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(void) {
  struct sigaction on_end = {.sa_handler = end}, on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  sigaction(SIGINT, &on_end, 0);
  sigaction(SIGTERM, &on_end, 0);
  sigaction(SIGCHLD, &on_child, 0);
  for (;;) pause();
}
