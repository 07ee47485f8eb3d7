/* Files that are replaced as a whole: signals and pipes, links, modes, long names. */
#define _GNU_SOURCE
#include "base/atomic_file.h"
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/talweg-atomic-XXXXXX";
static twi_memory *memory;

static const char *path_of(const char *name) {
    static char path[2][512];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* Empties the folder; how many files it held. */
static int sweep(void) {
    int count = 0;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (struct dirent *entry; (entry = readdir(listing));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            count++;
            assert_int_equal(unlinkat(dirfd(listing), entry->d_name, 0), 0);
        }
    closedir(listing);
    return count;
}

static int set_up(void **state) {
    (void)state;
    return twi_memory_create(&memory, 0, NULL, NULL) || !mkdtemp(folder);
}

static int tear_down(void **state) {
    (void)state;
    sweep();
    const bool left = twi_memory_get_stats(memory).blocks != 0 || rmdir(folder);
    memcpy(folder + strlen(folder) - 6, "XXXXXX", 6);
    twi_memory_destroy(memory);
    return left;
}

static tw_status save(const char *path, const char *text) {
    twi_atomic_file file;
    TWI_TRY(twi_atomic_file_open(&file, memory, path));
    twi_atomic_file_print(&file, "%s", text);
    return twi_atomic_file_commit(&file);
}

static void assert_holds(const char *path, const char *text) {
    char found[64] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_true(fread(found, 1, sizeof found - 1, file) <= strlen(text));
    fclose(file);
    assert_string_equal(found, text);
}

/* A process that is killed while it writes leaves nothing, where a file can be without a name. */
static void a_killed_writer_leaves_no_file(void **state) {
    (void)state;
    const int nameless = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
    if (nameless < 0) skip();
    close(nameless);
    CHECK_OK(save(path_of("file"), "before"));
    const pid_t child = fork();
    if (child == 0) {
        twi_atomic_file file;
        if (twi_atomic_file_open(&file, memory, path_of("file"))) _exit(1);
        twi_atomic_file_print(&file, "half");
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_holds(path_of("file"), "before");
    assert_int_equal(sweep(), 1);
}

/* ---- what could end the process ---- */

static bool is_blocked(int number) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    return sigismember(&mask, number) == 1;
}

static bool is_pending(int number) {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, number) == 1;
}

/* A reader that goes away in the middle, by the pipe's own path and by that of a descriptor. */
static void a_broken_pipe_is_a_failure(void **state) {
    (void)state;
    static char block[100000];
    const char *pipe_path = path_of("pipe");
    char descriptor_path[32];
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    for (int i = 0; i < 2; i++) {
        twi_atomic_file file;
        int reader = open(pipe_path, O_RDONLY | O_NONBLOCK);
        assert_true(reader >= 0);
        snprintf(descriptor_path, sizeof descriptor_path, "/dev/fd/%d", reader);
        CHECK_OK(twi_atomic_file_open(&file, memory, i ? descriptor_path : pipe_path));
        close(reader);
        twi_atomic_file_write(&file, block, sizeof block);
        CHECK_FAILS(twi_atomic_file_commit(&file), TW_ERROR_FILE, "Broken pipe");
        assert_false(is_blocked(SIGPIPE) || is_pending(SIGPIPE));
    }
    assert_int_equal(sweep(), 1);
}

/* What the last close still writes is no surprise either. */
static void a_dropped_file_raises_nothing(void **state) {
    (void)state;
    const char *path = path_of("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    twi_atomic_file file;
    CHECK_OK(twi_atomic_file_open(&file, memory, path));
    twi_atomic_file_print(&file, "kept in the buffer");
    close(reader);
    twi_atomic_file_drop(&file);
    assert_false(is_blocked(SIGPIPE) || is_pending(SIGPIPE));
}

static void a_pipe_without_reader_is_a_failure(void **state) {
    (void)state;
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    CHECK_FAILS(save(path_of("pipe"), "x"), TW_ERROR_FILE, "nobody reads from this pipe");
    assert_false(is_blocked(SIGPIPE));
}

static void a_pipe_gets_what_is_written(void **state) {
    (void)state;
    char got[8] = "";
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    int reader = open(path_of("pipe"), O_RDONLY | O_NONBLOCK);
    twi_atomic_file file;
    CHECK_OK(twi_atomic_file_open(&file, memory, path_of("pipe")));
    assert_int_equal(fcntl(fileno(file.stream), F_GETFL) & O_NONBLOCK, 0); /* a slow reader is waited for */
    twi_atomic_file_print(&file, "through");
    CHECK_OK(twi_atomic_file_commit(&file));
    assert_int_equal(read(reader, got, sizeof got), 7);
    assert_string_equal(got, "through");
    close(reader);
}

static void a_limit_on_file_sizes_is_a_failure(void **state) {
    (void)state;
    struct rlimit limit, low;
    CHECK_OK(save(path_of("a"), "old"));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    low = limit;
    low.rlim_cur = 2;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    tw_status status = save(path_of("a"), "longer");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, TW_ERROR_FILE);
    assert_non_null(strstr(tw_last_error(), "File too large"));
    assert_false(is_blocked(SIGXFSZ) || is_pending(SIGXFSZ));
    assert_holds(path_of("a"), "old");
    assert_int_equal(sweep(), 1);
}

/* A caller who holds a signal back himself, and has one waiting, finds both as they were. */
static void signals_of_the_caller_stay(void **state) {
    (void)state;
    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, SIGPIPE);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &mine, NULL), 0);
    assert_int_equal(raise(SIGPIPE), 0);
    CHECK_OK(save(path_of("a"), "x"));
    assert_true(is_blocked(SIGPIPE) && is_pending(SIGPIPE) && !is_blocked(SIGXFSZ));
    int number;
    assert_int_equal(sigwait(&mine, &number), 0);
    CHECK_OK(save(path_of("a"), "x"));
    assert_true(is_blocked(SIGPIPE) && !is_pending(SIGPIPE));
    assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &mine, NULL), 0);
}

/* ---- what a save must not change ---- */

static void a_link_stays_and_its_file_is_replaced(void **state) {
    (void)state;
    struct stat info;
    CHECK_OK(save(path_of("real"), "old"));
    assert_int_equal(symlink("real", path_of("link")), 0);
    assert_int_equal(symlink(path_of("link"), path_of("link2")), 0);
    CHECK_OK(save(path_of("link2"), "new"));
    assert_int_equal(lstat(path_of("link2"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(lstat(path_of("link"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_holds(path_of("real"), "new");
    assert_int_equal(sweep(), 3);
}

static void a_link_to_nothing_is_named(void **state) {
    (void)state;
    assert_int_equal(symlink("absent", path_of("link")), 0);
    assert_int_equal(symlink("loop", path_of("loop")), 0);
    CHECK_FAILS(save(path_of("link"), "x"), TW_ERROR_FILE, "link to a file that is not there");
    CHECK_FAILS(save(path_of("loop"), "x"), TW_ERROR_FILE, "Too many levels of symbolic links");
    assert_int_equal(sweep(), 2);
}

static void the_mode_stays(void **state) {
    (void)state;
    const mode_t modes[] = {0600, 0640, 0666, 0400}, umask_before = umask(022);
    struct stat info;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        CHECK_OK(save(path_of("a"), "old"));
        assert_int_equal(stat(path_of("a"), &info), 0);
        assert_int_equal(info.st_mode & 07777, 0644); /* a new file follows the umask */
        assert_int_equal(chmod(path_of("a"), modes[i]), 0);
        CHECK_OK(save(path_of("a"), "new"));
        assert_int_equal(stat(path_of("a"), &info), 0);
        assert_int_equal(info.st_mode & 07777, modes[i]);
        assert_int_equal(sweep(), 1);
    }
    umask(umask_before);
}

/* ---- names ---- */

static void the_longest_name_works(void **state) {
    (void)state;
    char name[NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[NAME_MAX] = 0;
    CHECK_OK(save(path_of(name), "old"));
    CHECK_OK(save(path_of(name), "new"));
    assert_holds(path_of(name), "new");
    assert_int_equal(sweep(), 1);
    name[NAME_MAX] = 'n';
    name[NAME_MAX + 1] = 0;
    CHECK_FAILS(save(path_of(name), "x"), TW_ERROR_FILE, "File name too long");
}

static void a_long_path_leaves_room_for_the_cause(void **state) {
    (void)state;
    static char path[20000];
    memset(path, 'p', sizeof path - 1);
    memcpy(path + sizeof path - 6, "/end", 4);
    CHECK_FAILS(save(path, "x"), TW_ERROR_FILE, "File name too long");
    assert_non_null(strstr(tw_last_error(), "/end"));
    assert_int_equal(strncmp(tw_last_error(), "...p", 4), 0);
}

/* Relative names, with no folder in them, and a working folder that changes in between. */
static void the_working_folder_may_change(void **state) {
    (void)state;
    char before[PATH_MAX];
    twi_atomic_file file;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    CHECK_OK(twi_atomic_file_open(&file, memory, "plain"));
    assert_int_equal(chdir("/"), 0);
    twi_atomic_file_print(&file, "here");
    CHECK_OK(twi_atomic_file_commit(&file));
    assert_int_equal(chdir(before), 0);
    assert_holds(path_of("plain"), "here");
    CHECK_FAILS(save(path_of("absent/"), "x"), TW_ERROR_FILE, "No such file");
    CHECK_FAILS(save(path_of("absent/file"), "x"), TW_ERROR_FILE,
                "cannot open it for writing: No such file or directory: make its folder first, or write elsewhere");
    CHECK_FAILS(save(path_of("plain/"), "x"), TW_ERROR_FILE, "Not a directory");
    CHECK_FAILS(save("", "x"), TW_ERROR_FILE, "'': cannot open it for writing");
    assert_int_equal(sweep(), 1);
}

#define in_folder(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_folder(a_killed_writer_leaves_no_file), in_folder(a_broken_pipe_is_a_failure),
        in_folder(a_dropped_file_raises_nothing),  in_folder(a_pipe_without_reader_is_a_failure),
        in_folder(a_pipe_gets_what_is_written),    in_folder(a_limit_on_file_sizes_is_a_failure),
        in_folder(signals_of_the_caller_stay),     in_folder(a_link_stays_and_its_file_is_replaced),
        in_folder(a_link_to_nothing_is_named),     in_folder(the_mode_stays),
        in_folder(the_longest_name_works),         in_folder(a_long_path_leaves_room_for_the_cause),
        in_folder(the_working_folder_may_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
