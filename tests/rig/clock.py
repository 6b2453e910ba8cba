"""A clock that a test sets: the wall clock of the processes that are started with it, ahead or behind, while they run.

A few lines of C stand before the C library's three ways to ask for the time and add what a file says; clocks without a
date are left alone. So everything in the process is shifted, the engine's client in Rust too, and nothing is patched.
"""

import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

COMPILER = shutil.which("cc")
_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *ahead;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_gettimeofday)(struct timeval *, void *);
__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
    int file = open(getenv("TESTS_CLOCK"), O_RDONLY);
    void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0 && page != MAP_FAILED) ahead = page;
}
int clock_gettime(clockid_t which, struct timespec *now) {
    if (!real_clock_gettime) begin();
    int failed = real_clock_gettime(which, now);
    if (!failed && ahead && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    if (!real_gettimeofday) begin();
    int failed = real_gettimeofday(now, zone);
    if (!failed && ahead && now) now->tv_sec += *ahead;
    return failed;
}
time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """Give `environment` to the processes that go by it. It begins right."""

    def __init__(self, folder: Path) -> None:
        assert COMPILER is not None, "no C compiler"
        folder.mkdir(parents=True, exist_ok=True)
        source, library, self._file = folder / "clock.c", folder / "clock.so", folder / "ahead"
        source.write_text(_SOURCE)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self._file.write_bytes(bytes(8))
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "TESTS_CLOCK": str(self._file)}

    def set(self, ahead: timedelta) -> None:
        """At once, for all of them."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(int(ahead.total_seconds()).to_bytes(8, "little", signed=True))

    @contextmanager
    def off_by(self, ahead: timedelta) -> Generator[None]:
        self.set(ahead)
        try:
            yield
        finally:
            self.set(timedelta(0))
